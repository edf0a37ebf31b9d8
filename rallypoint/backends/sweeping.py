"""What every supervising process does now and then beside its jobs: it deletes those that are over for long enough.

Nobody supervises a job that is over, and there is no daemon. So whoever supervises another job of the same place looks after
all of them; where nobody supervises anything, nothing is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from rallypoint.backends.contract import BackendError

__all__ = ["EVERY", "sweeping"]

log = logging.getLogger(__name__)

#: Seconds between two sweeps of one process, and before its first, on average.
EVERY, _FIRST = 300.0, 10.0

Sweep = Callable[[], Awaitable[None]]


class _Sweeper:
    """The sweeps of one place in one event loop; they go on as long as somebody supervises there."""

    def __init__(self, sweep: Sweep, every: float) -> None:
        self.users = 0
        self._task = asyncio.create_task(_sweep_on(sweep, every), name="sweep")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def _sweep_on(sweep: Sweep, every: float) -> None:
    pause = min(every, _FIRST)
    while True:
        # Many processes that began together must not ask together for ever.
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  spread, not secret
        pause = every
        try:
            await sweep()
        except BackendError as error:
            log.info("cannot list the finished jobs that must be deleted: %s; retrying in about %g s", error, every)


_sweepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Sweeper]] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def sweeping(place: Hashable, sweep: Sweep, *, every: float = EVERY) -> AsyncIterator[None]:
    """See to it that a place is swept while the context lasts, about each `every` seconds.

    Whoever comes to a place that this event loop sweeps already joins in: the first one's `sweep` goes on until the last is
    gone, so it must hold nothing that is the first one's alone.
    """
    sweepers = _sweepers.setdefault(asyncio.get_running_loop(), {})
    sweeper = sweepers.get(place)
    if sweeper is None:
        sweeper = sweepers[place] = _Sweeper(sweep, every)
    sweeper.users += 1
    try:
        yield
    finally:
        sweeper.users -= 1
        if not sweeper.users:
            del sweepers[place]
            await sweeper.stop()
