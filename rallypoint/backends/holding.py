"""Holding a job: which job that is, and letting go of it so that the record says so."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from rallypoint.backends.contract import Backend, BackendError, ConflictError, Stored
from rallypoint.supervision.record import Holder

__all__ = ["Job", "held", "told"]

log = logging.getLogger("rallypoint.backends.supervise")

T = TypeVar("T")

#: Longest that a supervisor that is cancelled takes to say so in the record, in seconds.
_LAST_WORD = 5.0


class Job:
    """The job that was there first under a name."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend, self.name = backend, name
        self._uid = self._holder = ""

    def held_by(self, holder: str) -> None:
        """Log who supervises it, once for each holder."""
        if holder != self._holder:
            self._holder = holder
            log.info("job=%s is supervised by %s; waiting to take over", self.name, holder)

    async def load(self) -> Stored | None:
        """Return it, or None when it was deleted, even if there is another of its name by now."""
        stored = await self.backend.load(self.name)
        if stored is None or self._uid not in ("", stored.record.uid):
            return None
        self._uid = stored.record.uid
        return stored


async def told(call: Awaitable[T]) -> T:
    """Return what a call of the backend returns; an `OSError` of it is a failure of the backend, unlike one of `on_turn`."""
    try:
        return await call
    except OSError as error:
        raise BackendError(str(error)) from error


@contextlib.asynccontextmanager
async def held(job: Job, holder: str) -> AsyncIterator[Holder]:
    """Hold a job, with a heart that beats meanwhile; who is cancelled lets it go. Raises what `Backend.hold` does."""
    async with contextlib.AsyncExitStack() as holds:
        await told(holds.enter_async_context(job.backend.hold(job.name, holder=holder)))
        me = await told(holds.enter_async_context(job.backend.heartbeat(holder)))
        try:
            yield me
        except asyncio.CancelledError:
            await _let_go(job, me)
            raise


async def _let_go(job: Job, me: Holder) -> None:
    """Say in the record that this process supervises the job no more.

    Its heart goes on beating for its other jobs, and this one's lease would never be over.
    """
    word = asyncio.create_task(_take_name_out(job, me))
    try:
        await asyncio.wait({word}, timeout=_LAST_WORD)
    finally:
        word.cancel()


async def _take_name_out(job: Job, me: Holder) -> None:
    while True:
        try:
            stored = await job.load()
            if stored is None or stored.record.holder is None or stored.record.holder.id != me.id:
                return
            gone = dataclasses.replace(stored.record.holder, id="", heartbeat="")
            await job.backend.save(dataclasses.replace(stored.record, holder=gone), version=stored.version)
        except ConflictError:
            continue
        except (BackendError, OSError) as error:
            log.info("job=%s: cannot remove the name of this supervisor from the job's record: %s", job.name, error)
        return
