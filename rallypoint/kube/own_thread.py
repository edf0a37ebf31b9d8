"""Blocking calls that may last for minutes, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_own_thread"]

T = TypeVar("T")


async def in_own_thread(call: Callable[[], T], *, name: str) -> T:
    """Return the result of a blocking call, which goes on in its thread if the caller is cancelled.

    The threads of `asyncio.to_thread` are few, and all tasks of a process share them, also for DNS.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  the caller gets it
            result.set_exception(error)

    # A daemon: the end of the process does not wait for it.
    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(result)
