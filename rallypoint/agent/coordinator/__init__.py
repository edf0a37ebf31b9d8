"""The coordinator's shell: it serves the pure core of `rendezvous/`, and publishes what that says."""
