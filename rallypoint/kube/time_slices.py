"""Turns of other tasks during a long computation in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator

__all__ = ["TimeSlices", "parts"]

#: Seconds for which a task computes before other tasks of its event loop run.
_SLICE = 0.005

#: Bytes of a stream that are computed on at once: splitting them into lines takes about a millisecond.
_PART = 64 << 10


class TimeSlices:
    """The time slices of one task.

    A task that reads data which is already there never waits, so `await` alone does not let other tasks run.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()

    async def give_way(self) -> None:
        """Let other tasks run if the slice is over."""
        if time.monotonic() - self._begun >= _SLICE:
            await asyncio.sleep(0)
            self._begun = time.monotonic()


async def parts(blocks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a stream in parts of at most 64 KiB; other tasks run between them."""
    slices = TimeSlices()
    async for block in blocks:
        for begin in range(0, len(block), _PART):
            yield block[begin : begin + _PART]
            await slices.give_way()
