"""Tests of what is not installed everywhere."""

from __future__ import annotations

import importlib.util

import pytest

__all__ = ["needs"]


def needs(name: str) -> None:
    """Skip the tests of a module where a distribution is not installed; it is not imported, which takes seconds for torch."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
