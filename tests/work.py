"""How much more work a function does for a larger input: calls are counted, so that no other load of the machine matters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["growth"]


def growth(function: Callable[[int], Callable[[], Any]], size: int, *, factor: int = 4) -> float:
    """Return how many times as many calls are made for `factor` times the size; `function` prepares what is counted."""
    return _calls(function(size * factor)) / _calls(function(size))


def _calls(function: Callable[[], Any]) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
