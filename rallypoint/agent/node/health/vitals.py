"""How the workers of a round are: what they use, since when they are silent. The kernel is asked, nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Usage", "Vital", "Vitals", "usage_of"]

#: What is wanted of `/proc/PID/stat` behind the name: the letter is the first field, the processor time the 12th and 13th.
_FIELDS = 13

_TICKS = os.sysconf("SC_CLK_TCK")

#: Seconds over which the use of the processor is taken at the least: its count has steps of a hundredth.
_WINDOW = 1.0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A process as the kernel tells it: its letter (`R`, `S`, `T`, ...), and seconds of processor time that it has used."""

    state: str
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Vital:
    """A worker over time; times are readings of the caller's clock.

    Attributes:
        liveness, since, cpu_then: its last sign of life, when that was seen, and what it had used by then.
        taken_at, taken_cpu: where the use of the processor is counted from; `busy` is the last count, in cores.
        pid, state, cpu: its process, 0 where none is left, and how that was at the last look.
    """

    pid: int
    liveness: int
    since: float
    cpu_then: float
    taken_at: float
    taken_cpu: float
    busy: float = 0.0
    state: str = ""
    cpu: float = 0.0

    def quiet(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return round(max(0.0, now - self.since), 1)

    def used(self, now: float) -> float:
        """Return how many cores it has used since then."""
        seconds = now - self.since
        return round(max(0.0, self.cpu - self.cpu_then) / seconds, 2) if seconds > 0 else 0.0


def usage_of(pid: int) -> Usage | None:
    """Return how a process is, None where there is none (any more)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(fd, 1024).rpartition(b")")[2].split(None, _FIELDS)
    except OSError:
        return None
    finally:
        os.close(fd)
    return Usage(state=fields[0].decode(), cpu=(int(fields[11]) + int(fields[12])) / _TICKS)


_GONE = Usage(state="", cpu=0.0)


class Vitals:
    """Of the workers of one round, by local rank."""

    def __init__(self, usage: Callable[[int], Usage | None] = usage_of) -> None:
        self._usage = usage
        self._known: dict[int, Vital] = {}

    def look(self, local_rank: int, pids: Sequence[int], liveness: int, now: float) -> Vital:
        """Look at a worker that has shown `liveness` signs of life; return how it is.

        Its process is the first of `pids` that is there: the one that says it trains, else the one that was started.
        """
        pid, seen = self._first(pids)
        known = self._known.get(local_rank)
        if known is None or known.pid != pid:
            # Another process counts from nothing; that it took over is no sign of life by itself.
            since = now if known is None or known.liveness != liveness else known.since
            known = Vital(pid=pid, liveness=liveness, since=since, cpu_then=seen.cpu, taken_at=now, taken_cpu=seen.cpu)
        lives, counted = known.liveness != liveness, now - known.taken_at
        over = counted >= _WINDOW
        vital = self._known[local_rank] = Vital(
            pid=pid,
            liveness=liveness,
            since=now if lives else known.since,
            cpu_then=seen.cpu if lives else known.cpu_then,
            taken_at=now if over else known.taken_at,
            taken_cpu=seen.cpu if over else known.taken_cpu,
            busy=round(max(0.0, seen.cpu - known.taken_cpu) / counted, 2) if over else known.busy,
            state=seen.state,
            cpu=seen.cpu,
        )
        return vital

    def _first(self, pids: Sequence[int]) -> tuple[int, Usage]:
        for pid in pids:
            seen = self._usage(pid) if pid > 0 else None
            if seen is not None:
                return pid, seen
        return 0, _GONE
