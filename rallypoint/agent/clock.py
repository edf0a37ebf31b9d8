"""One clock for a process: it reads like the wall's and never runs backwards."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "monotone_clock"]

#: Seconds since the epoch, never decreasing within one process.
Clock = Callable[[], float]


def monotone_clock() -> Clock:
    """Return a clock that was right when this was called and goes on at the steady pace of the machine."""
    base = time.time() - time.monotonic()
    return lambda: base + time.monotonic()
