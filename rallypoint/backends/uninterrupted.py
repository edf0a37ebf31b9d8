"""Work that goes on although its caller is cancelled: cleaning up, and calls that may block."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_thread", "uninterrupted"]

T = TypeVar("T")

P = ParamSpec("P")

#: Threads of each event loop. They are not those of `asyncio.to_thread`, of which other triggers of a triggerer have a few in
#: all: what a job does to its files can make a call last.
_MOST = 32
_executors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = weakref.WeakKeyDictionary()


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
    loop = asyncio.get_running_loop()
    executor = _executors.get(loop)
    if executor is None:
        executor = _executors[loop] = ThreadPoolExecutor(_MOST, thread_name_prefix="rallypoint")
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    running = asyncio.ensure_future(loop.run_in_executor(executor, call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # no caller waits for it
        raise
