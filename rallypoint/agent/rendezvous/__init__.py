"""Who is in the world, when a round is over and why, what hangs: the coordinator's pure core. No clock, no I/O."""
