"""Real jobs on the local backend, and hundreds of random kills: `make soak`, or `python -m tests.soak --kills N --seed S`."""
