"""Publishing the status: what is written at once, what when it is due, and what happens while it cannot be written."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.sink import StatusSink
from rallypoint.agent.waiting import TIMER_FLOOR, breather, set_within
from rallypoint.supervision.folding import bounded
from rallypoint.wire.missing import Absence
from rallypoint.wire.status import JobStatus, Progress

__all__ = ["PROGRESS_PERIOD", "Publisher", "gist"]

log = logging.getLogger("rallypoint.coordinator")

#: Seconds between two writes that tell progress only, where writing costs nobody anything.
PROGRESS_PERIOD = 1.0

#: Seconds after a write until the next that tells who fell silent: that is known within two seconds, and somebody who is silent
#: for a moment now and then costs no more writes.
_SILENCE_PERIOD = 0.4

#: Seconds between two tries to publish while the sink does not work.
_SINK_RETRY = 1.0


class Publisher:
    """Writes the newest status to a sink, again and again.

    `newest` returns it with its number, `durable` is called with the number up to which everything can be read by a successor,
    and `note` adds a line to the job's story. What tells progress only is written every `period` seconds.
    """

    def __init__(
        self,
        sink: StatusSink,
        *,
        clock: Clock,
        period: float,
        newest: Callable[[], tuple[int, JobStatus]],
        durable: Callable[[int], None],
        note: Callable[[str, str], None],
    ) -> None:
        self._sink, self._clock, self._period = sink, clock, period
        self._newest, self._durable, self._note = newest, durable, note
        self._dirty, self._urgent = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why no later coordinator can read what is published, "" where it can."""
        return self._sink.trouble

    def changed(self, *, urgent: bool) -> None:
        """Note that there is something to write; where it is urgent somebody waits for it."""
        self._dirty.set()
        if urgent:
            self._urgent.set()

    async def first(self) -> None:
        """Publish the first status; raises `StaleError` or `OSError`."""
        await self._sink.publish(self._newest()[1])
        self._note_trouble()

    async def run(self) -> None:
        """Publish until it is cancelled; raises `StaleError` when a later coordinator has published."""
        loop = asyncio.get_running_loop()
        published: JobStatus | None = None
        due = written = self._clock()
        pause_until = 0.0
        while True:
            await self._dirty.wait()
            await set_within(self._urgent, pause_until - loop.time())
            self._dirty.clear()
            self._urgent.clear()
            began = loop.time()
            version, status = self._newest()
            if published is not None and _silent(status) != _silent(published):
                due = min(due, written + _SILENCE_PERIOD)
            if published is None or gist(status) != gist(published) or self._clock() >= due:
                await self._write(status)
                published, written = status, self._clock()
                due = written + self._period
            else:  # the gist is durable already; the rest follows when it is due
                self._publish_at(due)
            self._durable(version)
            pause_until = loop.time() + breather(loop.time() - began)

    def close(self) -> None:
        """Wake up no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _publish_at(self, due: float) -> None:
        self.close()
        delay = max(due - self._clock(), TIMER_FLOOR)
        self._timer = asyncio.get_running_loop().call_later(delay, self._dirty.set)

    async def _write(self, status: JobStatus) -> None:
        while True:
            try:
                await self._sink.publish(bounded(status))
            except OSError as error:
                log.warning(
                    "the coordinator cannot publish the job status (%s); retrying in %g s, and no agent receives a reply until "
                    "the status is published",
                    error,
                    _SINK_RETRY,
                )
                await asyncio.sleep(_SINK_RETRY)
            else:
                self._note_trouble()
                return

    def _note_trouble(self) -> None:
        """Tell in the job's story when no later coordinator can read what is published, and when it can again."""
        trouble = self.trouble
        if bool(trouble) != bool(self._trouble):
            self._note("status-undurable" if trouble else "status-durable", trouble or "publishing the status again")
        self._trouble = trouble


def _silent(status: JobStatus) -> list[int]:
    return [one.node for one in status.missing if one.why is Absence.SILENT]


def gist(status: JobStatus) -> JobStatus:
    """The status without what changes all the time; a report that is overdue is mostly there a moment later."""
    gone = tuple(one for one in status.missing if one.why is not Absence.SILENT)
    return dataclasses.replace(
        status,
        progress=Progress(),
        ranks=(),
        phases={},
        samples=(),
        missing=gone,
        missing_count=len(gone),
        updated_at=0.0,
        sections=status.sections.steady(),
    )
