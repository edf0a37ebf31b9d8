"""Stragglers: ranks that are slower than the others while they train."""
