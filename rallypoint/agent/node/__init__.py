"""The node agent: what happens on one node in one round, and what is done about it."""
