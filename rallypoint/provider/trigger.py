"""The trigger of a deferred training task: the same supervision loop, in the triggerer's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rallypoint.backends.contract import Backend
from rallypoint.provider import doors
from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.conduct import Post, cancel, conduct, is_local
from rallypoint.provider.delivery import ending_event
from rallypoint.provider.publishing import Publication, publish_interval
from rallypoint.provider.task_state import may_cancel, prepare, task_state
from rallypoint.provider.task_xcom import XComBookmark, write_xcom
from rallypoint.report.page.published import PAGE_KEY
from rallypoint.wire.errors import RallypointError

__all__ = ["ElasticTrainingTrigger"]


#: What goes on after its trigger is gone; an event loop alone would forget it.
_AT_WORK: set[asyncio.Future[None]] = set()


class ElasticTrainingTrigger(BaseTrigger):
    """Supervises one job to its end and says how it ended, in one event that holds everything.

    Its arguments are those of a `Claim`; Airflow stores them as plain text, and they are identifiers only. A triggerer that
    stops, or hands the trigger to another, leaves the job running: the next one finds it and takes over.
    """

    def __init__(self, **claim: Any) -> None:
        super().__init__()
        self.claim = Claim(**claim)

    @classmethod
    def of(cls, claim: Claim) -> ElasticTrainingTrigger:
        """Return the trigger that waits for what `claim` names."""
        return cls(**dataclasses.asdict(claim))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and the claim."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dataclasses.asdict(self.claim)

    def open_backend(self) -> Backend:
        """Return the backend that holds the job, its connection read anew. Blocks; called in a thread."""
        return doors.open_backend(self.claim.place)

    def spawn_supervisor(self, claim: Claim) -> None:
        """Leave a supervisor behind that sees to the job without the triggerer."""
        doors.spawn_supervisor(claim)

    async def ask_state(self) -> str | None:
        """Return the present state of the task that waits for this trigger."""
        return None if self.task_instance is None else await task_state(self.task_instance)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event whose payload is an `Ending`, whatever happens, except when the trigger is cancelled."""
        preparation = asyncio.ensure_future(asyncio.to_thread(prepare))
        ending = await self._ending()
        try:
            await preparation
        except Exception as error:  # noqa: BLE001  it only saves time later
            self.log.warning("Cannot import in advance the modules that delete the job if the task is cancelled: %s", error)
        yield TriggerEvent(ending_event(ending))

    async def _ending(self) -> Ending:
        ending = None
        try:
            async with self._post() as post:
                ending = await conduct(post)
        except Exception as error:
            if ending is not None:  # only closing the backend failed
                self.log.warning("Cannot close the backend of job %s: %s", self.claim.name, error)
                return ending
            known = isinstance(error, (OSError, RallypointError))
            if not known:
                self.log.exception("Supervision of job %s failed", self.claim.name)
            text = str(error) if known else f"supervision of job {self.claim.name} failed: {type(error).__name__}: {error}"
            return Ending(end=End.ERROR, name=self.claim.name, text=text, local_failure=is_local(error))
        else:
            return ending

    async def on_kill(self) -> None:
        """Cancel the job when the task was ended by somebody, and the job still belongs to this try.

        Airflow calls this also when a stalled triggerer wakes up and another has its triggers, and after a clear when the next
        try has the job already; neither may cost a healthy job.
        """
        # Airflow cancels this very call again with each of its syncs, about once a second: the work goes on behind a shield.
        work = asyncio.ensure_future(self._kill())
        _AT_WORK.add(work)
        work.add_done_callback(_AT_WORK.discard)
        await asyncio.shield(work)

    async def _kill(self) -> None:
        state = await self.ask_state()
        if not may_cancel(state):
            self.log.info("Task state is %r; job %s continues", state, self.claim.name)
            return
        async with self._post() as post:
            if await cancel(post):
                self.log.info("Task state is %r; deleting job %s", state, self.claim.name)

    @contextlib.asynccontextmanager
    async def _post(self) -> AsyncIterator[Post]:
        # In a thread: opening a backend imports what it needs, and nobody else may wait for that.
        backend = await asyncio.to_thread(self.open_backend)
        try:
            bookmark = None if self.task_instance is None else XComBookmark(ti=self.task_instance)
            yield Post(
                claim=self.claim,
                backend=backend,
                spawn=self.spawn_supervisor,
                log=self.log,
                bookmark=bookmark,
                publication=self._publication(),
            )
        finally:
            await backend.close()

    def _publication(self) -> Publication | None:
        ti, claim = self.task_instance, self.claim
        if ti is None or not claim.publish:
            return None
        return Publication(
            write=functools.partial(write_xcom, ti, PAGE_KEY),
            interval=publish_interval(),
            owner=claim.owner,
            number=claim.try_number,
            place=claim.backend,
        )
