"""The root of every error that Rallypoint raises on purpose."""

from __future__ import annotations

__all__ = ["RallypointError"]


class RallypointError(Exception):
    """Something a person can act on; the text says what is wrong, where, and what would be right."""
