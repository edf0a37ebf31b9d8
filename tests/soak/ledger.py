"""What the workers of a job wrote down, and what must be true of it whatever happened to them. Pure but for reading the file.

- Every state that is resumed from or reached is that of the undisturbed run after as many steps: none was torn.
- Nobody resumes from before the last save that is known to be whole: none was stale.
- Once a round has made a step, no earlier one makes any, and in each every rank is one process: one world trains.
- Who is done is at the last step, with the last state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Line", "lost_steps", "read", "wrongs"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: `what` a rank did at `step`, in the round of `fence` (attempt, term, round), when (the machine's own clock).

    `resumed`, `step`, `saved`, `unsaved`, `done`; and `damaged`, which the soak itself notes: a save is whole no more.
    """

    at: float
    what: str
    step: int
    fence: tuple[int, int, int]
    rank: int = -1
    world: int = 0
    pid: int = 0
    digest: str = ""

    @property
    def round(self) -> tuple[int, int]:
        """Which round of the job; the term says only who granted it."""
        return self.fence[0], self.fence[2]


def read(path: Path) -> list[Line]:
    """Return the lines in the order in which they were written, none where nobody has written any."""
    if not path.exists():
        return []
    return [_line(text) for text in path.read_text().splitlines()]


def _line(text: str) -> Line:
    said = json.loads(text)
    attempt, term, round_ = said["fence"]
    known = {name: said[name] for name in ("at", "what", "step", "rank", "world", "pid", "digest") if name in said}
    return Line(fence=(attempt, term, round_), **known)


def wrongs(lines: Sequence[Line], course: Sequence[str]) -> list[str]:
    """Return what is wrong; `course` are the digests of the undisturbed run, before the first step and after each."""
    return [*_torn(lines, course), *_stale(lines), *_two_worlds(lines), *_unfinished(lines, course)]


def _torn(lines: Iterable[Line], course: Sequence[str]) -> Iterable[str]:
    for line in lines:
        if line.digest and line.digest != course[line.step]:
            yield f"{_who(line)} {line.what} step {line.step} with a state that is not that of the undisturbed run"


def _stale(lines: Iterable[Line]) -> Iterable[str]:
    """Each rank notes a save for itself once it is whole on disk: the first of these lines is enough."""
    whole: set[int] = set()
    for line in lines:
        if line.what == "saved":
            whole.add(line.step)
        elif line.what == "damaged":
            whole.discard(line.step)
        elif line.what == "resumed" and line.step < max(whole, default=0):
            yield f"{_who(line)} resumed from step {line.step}, though step {max(whole)} was saved"


def _two_worlds(lines: Iterable[Line]) -> Iterable[str]:
    newest = (0, 0)
    pids: dict[tuple[int, int, int], int] = {}
    for line in lines:
        if line.what != "step":
            continue
        if line.round < newest:
            yield f"{_who(line)} makes step {line.step}, though round {newest[1]} of attempt {newest[0]} trains"
        newest = max(newest, line.round)
        if pids.setdefault((*line.round, line.rank), line.pid) != line.pid:
            yield f"{_who(line)} is two processes in one round"


def _unfinished(lines: Iterable[Line], course: Sequence[str]) -> Iterable[str]:
    for line in lines:
        if line.what == "done" and line.step != len(course) - 1:
            yield f"{_who(line)} is done at step {line.step}"


def _who(line: Line) -> str:
    attempt, _, round_ = line.fence
    return f"rank {line.rank} of {line.world} (pid {line.pid}, attempt {attempt}, round {round_})"


def lost_steps(lines: Iterable[Line]) -> list[int]:
    """Return for each round that went on from steps of an earlier one how many of those were made in vain."""
    found: list[int] = []
    reached, newest = 0, (0, 0)
    for line in lines:
        if line.what == "resumed" and line.round > newest:
            if reached:
                found.append(max(0, reached - line.step))
            reached, newest = line.step, line.round
        elif line.what == "step" and line.round == newest:
            reached = max(reached, line.step)
    return found
