"""Cleaning up although the caller is cancelled, perhaps more than once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["uninterrupted"]

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end and return its result; a cancellation that comes meanwhile is raised afterwards.

    The work must end by itself soon.
    """
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # it counts as retrieved
        raise asyncio.CancelledError
    return task.result()
