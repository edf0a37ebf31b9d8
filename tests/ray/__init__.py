"""The Ray backend, on real local Ray clusters."""
