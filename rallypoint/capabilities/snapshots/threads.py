"""Work that takes long and that the end of the agent does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Return what `call` returns, in a thread called `name`; raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if not done.done():
            done.set_result(result)

    def fail(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  it is raised where it is waited for
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
