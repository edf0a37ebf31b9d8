"""The pulses of a node's workers, read now and then: how old their last sign of life is, what they do, how long that takes.

Their words are read with each report. Their counts are a few kilobytes each, so they are read when there may be news in them:
often while little is known, and once in `_SELDOM` seconds later. What a worker has read and written is looked at while it is
silent.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rallypoint.agent.node.health.npus import Meter
from rallypoint.wire.progress import Life, ProgressFile, ProgressSlot
from rallypoint.wire.pulse import Learned, Pace, Phase, Pulse, learned_of

__all__ = ["Pulses", "Seen", "moved"]

#: Seconds between two looks at the counts: while few steps were seen, and then.
_OFTEN, _SELDOM, _FEW = 1.0, 10.0, 200

#: A worker that was silent for so many seconds is looked at more closely.
_SILENT = 0.5

#: Steps and seconds of a measurement of how fast a worker is, at the least.
_STEPS, _SECONDS = 5, 2.0

_BILLION = 1_000_000_000

_NOTHING = ProgressSlot()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a report says of a worker's pulse; see `WorkerReport`."""

    phase: Phase | None = None
    beat: int = 0
    quiet: float | None = None
    moved: int = 0
    gpu: float = 0.0
    pace: Pace | None = None


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Where a measurement began: after so many steps that count, at a step, and what had been waited and left out by then."""

    steps: int
    step_at: int
    waited: int
    out: int


def moved(pid: int) -> int:
    """Return how many bytes a process has read from files and written to them so far; 0 where nobody may know."""
    try:
        fd = os.open(f"/proc/{pid}/io", os.O_RDONLY)
    except OSError:
        return 0
    try:
        lines = os.read(fd, 512).split(b"\n")
    except OSError:
        return 0
    finally:
        os.close(fd)
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


@dataclass(frozen=True, kw_only=True)
class _Reports:
    """The number of reports of a worker at the last look, and when it made the last; 0 for none since the first look."""

    count: int
    looked: int
    at: int = 0


class Pulses:
    """Of the workers of one round, by local rank."""

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        files: Callable[[int], int] = moved,
        gpus: Meter | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._files, self._gpus, self._wall = clock, files, gpus, wall
        self._seen: dict[int, Seen] = {}
        self._reports: dict[int, _Reports] = {}
        self._windows: dict[int, _Window] = {}
        self._learned: tuple[Learned, ...] = ()
        self._looked = 0

    def look(self, local_rank: int, pulse: Pulse, life: Life, slot: ProgressSlot = _NOTHING) -> Seen:
        """Return what is new of a worker; its reports are signs of life as its beats are, also where it has no optimizer."""
        known = self._seen.get(local_rank, Seen())
        if pulse.at == 0:
            return known
        now = self._clock()
        lively_at = max(pulse.at, self._reported_at(local_rank, slot, now))
        quiet = round(max(0, now - lively_at) / _BILLION, 3)
        seen = dataclasses.replace(known, phase=pulse.phase, beat=pulse.at // 1_000_000, quiet=quiet)
        if quiet >= _SILENT:
            gpu = 0.0 if self._gpus is None else self._gpus.busy(local_rank)
            seen = dataclasses.replace(seen, moved=self._files(life.pid), gpu=gpu)
        self._seen[local_rank] = dataclasses.replace(seen, pace=self._pace(local_rank, pulse, life.steps, known.pace))
        return self._seen[local_rank]

    def _reported_at(self, local_rank: int, slot: ProgressSlot, now: int) -> int:
        """Return when a worker made its last report, 0 where it has made none since the first look.

        It tells the time by the wall clock, which is taken only where it lies between the last two looks.
        """
        known = self._reports.get(local_rank, _Reports(count=slot.liveness, looked=now))
        at = known.at
        if slot.liveness != known.count:
            age = (self._wall() - slot.at) * _BILLION
            at = now - int(age) if 0 <= age <= now - known.looked else now
        self._reports[local_rank] = _Reports(count=slot.liveness, looked=now, at=at)
        return at

    def _pace(self, local_rank: int, pulse: Pulse, steps: int, known: Pace | None) -> Pace | None:
        """Return the last measurement, of steps that only steps lie between."""
        here = _Window(steps=steps - pulse.out_steps, step_at=pulse.step_at, waited=pulse.waited, out=pulse.out_time)
        begun = self._windows.get(local_rank)
        if begun is None or begun.step_at == 0 or pulse.phase is Phase.START_UP:
            self._windows[local_rank] = here
            return known
        count, took = here.steps - begun.steps, here.step_at - begun.step_at - (here.out - begun.out)
        if count < _STEPS or took < _SECONDS * _BILLION:
            return known
        self._windows[local_rank] = here
        own = max(0, took - (here.waited - begun.waited))
        return Pace(
            window=1 if known is None else known.window + 1,
            steps=count,
            step=round(took / count / _BILLION, 6),
            own=round(own / count / _BILLION, 6),
        )

    def learned(self, progress: ProgressFile | None, local_ranks: Iterable[int]) -> tuple[Learned, ...]:
        """Return how long the phases of all workers took so far, as it was when it was last looked at."""
        if progress is None:
            return self._learned
        now = self._clock()
        often = sum(one.count for one in self._learned if one.phase is Phase.STEP) < _FEW
        if now - self._looked >= (_OFTEN if often else _SELDOM) * _BILLION:
            self._looked = now
            self._learned = _together([progress.counts(local_rank) for local_rank in local_ranks])
        return self._learned


def _together(counts: list[dict[Phase, tuple[int, ...]]]) -> tuple[Learned, ...]:
    """Return what workers have seen together; how often is told as of the one that has seen most, since they go in step."""
    found = []
    for phase in Phase if any(counts) else ():
        own = [one[phase] for one in counts if phase in one]
        learned = learned_of(phase, own) if own else None
        if learned is not None:
            found.append(dataclasses.replace(learned, count=max(map(sum, own))))
    return tuple(found)
