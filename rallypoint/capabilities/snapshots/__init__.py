"""Snapshots in memory: kept by the node agents, copied to other nodes, stored when workers end or the attempt ends.

What training scripts use of it is `rallypoint.training.snapshots`.
"""
