"""Nodes, a scheduler, and containers that are processes of this machine."""
