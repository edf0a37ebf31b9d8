"""Waiting for an event, but not for ever; and how long a loop that serves many lets work wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["TIMER_FLOOR", "breather", "in_background", "set_within"]

#: Seconds. A timer that fires a moment too early would find nothing due: never ask again sooner than this.
TIMER_FLOOR = 0.001

#: How many times as long as it took is waited before the same is done again; and how many seconds at the most.
_PAUSE, _LONGEST_PAUSE = 3.0, 0.25


def breather(took: float) -> float:
    """Return the seconds that the loop has for others after work that took so many."""
    return min(_PAUSE * took, _LONGEST_PAUSE)


def in_background(work: Coroutine[Any, Any, None], log: logging.Logger, name: str) -> asyncio.Task[None]:
    """Start work whose result is awaited by nothing; its failure is one line of the log. The caller keeps the task."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s: %s", name, type(error).__name__, error, exc_info=error if log.isEnabledFor(10) else None)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Return True as soon as `event` is set, False after `seconds` without."""
    if seconds <= 0 or event.is_set():
        return event.is_set()
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
        return event.is_set()
    finally:
        waiter.cancel()
