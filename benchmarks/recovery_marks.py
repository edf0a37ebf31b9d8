"""From what a launch left behind (marks of the workers, log of the launcher) to recoveries and their parts."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path

__all__ = ["PARTS", "Mark", "Recovery", "log_times", "median_parts", "read_marks", "recoveries"]

#: The parts of a recovery, in order; each ends where the next begins.
PARTS = ("detect", "stop", "rendezvous", "start", "import", "group", "wrap", "load", "step")

#: How torchrun (`I1121 11:29:22.326000 `) and we (`11:29:22.326 `) begin a line of the log.
_LOGGED = re.compile(r"^(?:[IWE]\d{4} )?(\d\d:\d\d:\d\d\.\d+) ")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A worker of `attempt` reached `mark` at `at` (seconds since the epoch)."""

    mark: str
    attempt: int
    rank: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One kill: `total` seconds to the first step of the last rank; `parts` sums up to it.

    `failed` counts attempts in between that did not train; their time is within the part `start`.
    """

    total: float
    parts: Mapping[str, float]
    failed: int = 0


def read_marks(folder: Path) -> tuple[Mark, ...]:
    """Return what the workers of one launch wrote; a line cut by the kill is dropped."""
    marks: list[Mark] = []
    for path in sorted(folder.glob("marks-*.jsonl")):
        marks.extend(Mark(**json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}"))
    return tuple(marks)


def log_times(lines: Iterable[str], pattern: str, *, today: datetime) -> tuple[float, ...]:
    """Return when the launcher logged lines that match, as seconds since the epoch; the log is of `today`."""
    times = []
    for line in lines:
        found = _LOGGED.match(line)
        if found is not None and re.search(pattern, line):
            clock = time.fromisoformat(found[1].ljust(15, "0"))
            times.append(datetime.combine(today.date(), clock, today.tzinfo).timestamp())
    return tuple(times)


def recoveries(marks: Sequence[Mark], logged: Mapping[str, Sequence[float]], *, workers: int) -> tuple[Recovery, ...]:
    """Return each kill that was followed by a step on every rank of a later attempt.

    A part is over when the last of the `workers` is through. `logged` maps `detect`, `stop` and `rendezvous` to the
    times at which the launcher logged that this part was over.
    """
    found = []
    last = max((m.attempt for m in marks), default=0)
    for kill in (m for m in marks if m.mark == "killed"):
        trained = [a for a in range(kill.attempt + 1, last + 1) if _last(marks, a, "stepped", workers) is not None]
        if not trained:
            continue
        names = ("started", "imported", "grouped", "wrapped", "loaded", "stepped")
        ends = [_last(marks, trained[0], name, workers) for name in names]
        # A line that comes after the step is of a later recovery: where nobody is stopped, nothing is said of it.
        own = [_first_after(logged[part], kill.at, ends[-1]) for part in ("detect", "stop", "rendezvous")]
        parts = _parts(kill.at, [*own, *ends])
        found.append(Recovery(total=sum(parts.values()), parts=parts, failed=trained[0] - kill.attempt - 1))
    return tuple(found)


def _last(marks: Sequence[Mark], attempt: int, name: str, workers: int) -> float | None:
    reached = {m.rank: m.at for m in marks if (m.attempt, m.mark) == (attempt, name)}
    return max(reached.values()) if len(reached) == workers else None


def _first_after(times: Sequence[float], start: float, end: float | None) -> float | None:
    return min((t for t in times if t >= start and (end is None or t <= end)), default=None)


def _parts(start: float, times: Sequence[float | None]) -> dict[str, float]:
    """Return the length of each part; one that the launcher did not log counts to the next."""
    parts = {}
    for name, end in zip(PARTS, times, strict=True):
        parts[name] = 0.0 if end is None else max(0.0, end - start)
        start = start if end is None else max(start, end)
    return parts


def median_parts(found: Sequence[Recovery]) -> dict[str, float]:
    """Return the median of each part over several recoveries."""
    return {name: statistics.median(r.parts[name] for r in found) for name in PARTS} if found else {}
