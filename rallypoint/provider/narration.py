"""What a task's log tells of its job: one line for each thing that happened, and now and then where the training is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.report.format import counted, metrics_text
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import Event, JobState, JobStatus

if TYPE_CHECKING:
    from rallypoint.backends.turns import Snapshot

__all__ = ["Narrator", "news", "progress_line"]

#: Seconds between two lines about progress.
PROGRESS_EVERY = 15.0


def news(before: tuple[Event, ...], after: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events of `after` that were not in `before`; both are ordered, and the oldest may have been dropped."""
    if not before:
        return after
    last = before[-1]
    for index in range(len(after) - 1, -1, -1):
        if after[index] == last:
            return after[index + 1 :]
    return after


def progress_line(status: JobStatus) -> str:
    """Return one line about where the training is."""
    progress = status.progress
    step = "no step reported" if progress.step is None else f"step {progress.step} {metrics_text(progress)}".rstrip()
    fence = f"attempt {status.fence.attempt}, round {status.fence.round}"
    return f"{step} ({counted(status.world_size, 'rank')} on {counted(len(status.world), 'node')}, {fence})"


class Narrator:
    """Given every snapshot of a supervision loop, tells each thing once.

    Args:
        tell: gets one line at a time.
        clock: seconds, only differences of it matter.
    """

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tell = lambda line: tell(clean_text(line))
        self._history: tuple[Event, ...] = ()
        self._events: tuple[Event, ...] = ()
        self._supervising: bool | None = None
        self._next_progress = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        """Tell what is new in `snapshot`."""
        record, status = snapshot.record, snapshot.status
        self._tell_role(supervising=snapshot.supervising)
        if not snapshot.supervising:  # a supervisor logs what it decides by itself
            for event in news(self._history, record.history):
                self._tell(f"{event.kind}: {event.detail}")
        self._history = record.history
        if status is None or status.uid != record.uid:
            return
        for event in news(self._events, status.events):
            self._tell(f"{event.kind}: {event.detail}")
        self._events = status.events
        if status.state is JobState.RUNNING and self._clock() >= self._next_progress:
            self._next_progress = self._clock() + PROGRESS_EVERY
            self._tell(progress_line(status))

    def _tell_role(self, *, supervising: bool) -> None:
        if self._supervising is not supervising and (self._supervising is not None or not supervising):
            self._tell(
                "this process is now the supervisor of the job"
                if supervising
                else "another process is the supervisor of the job; watching"
            )
        self._supervising = supervising
