"""The words that travel between processes: standard library only, frozen, versioned."""
