"""The version, in a file of its own so that a build reads it without importing anything."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
