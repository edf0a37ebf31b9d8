"""Snapshots of the training state in shared memory that outlives the worker, and their way back into a model."""
