"""Connections: what they say, how they are asked for in a form and tested, and which place is meant by them."""
