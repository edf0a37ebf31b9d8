"""Work that goes on although its caller is cancelled: cleaning up, and calls that may block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_thread", "uninterrupted"]

T = TypeVar("T")

P = ParamSpec("P")


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


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread and return what it returns.

    Whoever is cancelled meanwhile waits until the thread is through: nothing is done behind the back of its successor.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # no caller waits for it
        raise
