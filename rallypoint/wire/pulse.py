"""What a worker's Python tells by itself of the phase that it is in and of how long things take, in shared memory.

A pulse is written by the start-up module (training/startup) beside the life record, each word by one store, and read by the
agent, without a system call on either side. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a node share.

```
words   Q at  Q phase  Q since  Q step_at  Q waited  Q collectives  Q left  Q operation
        Q out_time  Q out_steps
counts  I[BUCKETS] for each phase: how long it took, a count for each length
```

A *beat* is a sign that training goes on: an optimizer's step, a backward pass, a batch of data, the beginning and the end of a
phase. Silence is the time since the last one.

Lengths of time are counted in buckets an eighth of an octave wide, from 8 microseconds up: whoever reads 3.00 s from one knows
it to 12 %, and always reads the upper end.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE

__all__ = [
    "BUCKETS",
    "COUNTS_OFFSET",
    "PULSE_BYTES",
    "Learned",
    "Pace",
    "Phase",
    "Pulse",
    "bucket",
    "counts_of",
    "learned_of",
    "pulse_of",
    "upper",
]

BUCKETS = 256
_WORDS = struct.Struct("<10Q")
_HEAD = 128
#: A unit of the buckets is 1,024 ns; eight of them are the least that is told apart.
_UNIT_SHIFT, _LEAST = 10, 8
_COUNT_BYTES = 4
_NOTHING = bytes(BUCKETS * _COUNT_BYTES)


class Phase(str, enum.Enum):
    """What a worker is doing, as far as its Python knows."""

    START_UP = "start-up"  #: imports, downloads, its first steps
    STEP = "step"  #: it trains
    DATA = "data wait"  #: it waits for a batch
    FIRST_BATCH = "first batch"  #: it waits for the first one of a pass, for which a loader starts its processes
    CHECKPOINT = "checkpoint"  #: it saves
    EVALUATION = "evaluation"
    COMPILE = "compile"


#: In the order of their numbers in memory.
_PHASES = tuple(Phase)
PULSE_BYTES = _HEAD + len(_PHASES) * BUCKETS * _COUNT_BYTES
COUNTS_OFFSET = _HEAD


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """The words of a pulse; `at` 0 is one that nothing was ever written to.

    Attributes:
        at: when the last beat was.
        phase, since: what it is doing, and when that began; a wait for data begins with its beat.
        step_at: when the last step of an optimizer ended.
        waited: nanoseconds that it has waited for other ranks, all in all, where that can be told, until then.
        out_time, out_steps: of steps between which there was something else than a step: how many, and how long they took
        without
            what was waited.
        collectives, left: collectives that it has called, and those that it has returned from.
        operation: which one it called last, by its place among the start-up module's names.
    """

    limits: ClassVar = {
        "at": WHOLE,
        "since": WHOLE,
        "step_at": WHOLE,
        "waited": WHOLE,
        "collectives": WHOLE,
        "left": WHOLE,
        "operation": WHOLE,
        "out_time": WHOLE,
        "out_steps": WHOLE,
    }

    at: int = 0
    phase: Phase = Phase.START_UP
    since: int = 0
    step_at: int = 0
    waited: int = 0
    collectives: int = 0
    left: int = 0
    operation: int = 0
    out_time: int = 0
    out_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """How long a phase of a job took so far, in seconds.

    Attributes:
        phase: which one.
        count: how often it was seen.
        p99: of 100 of them 99 took no longer.
        longest: none took longer.
        ranks: the size of the world that it was learned of; 0 is the one that runs.
    """

    limits: ClassVar = {"count": WHOLE}

    phase: Phase
    count: int
    p99: float
    longest: float
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a worker was of late.

    Attributes:
        window: number of the measurement; each one is taken once.
        steps: optimizer steps in it.
        step: seconds from one to the next.
        own: seconds of these in which it did not wait for other ranks, as far as that can be told.
    """

    limits: ClassVar = {"window": WHOLE, "steps": WHOLE}

    window: int
    steps: int
    step: float
    own: float


def pulse_of(memory: bytes) -> Pulse:
    """Return the words at the beginning of `memory`; a number of a phase that is not known here reads as the start."""
    at, phase, since, step_at, waited, collectives, left, operation, out_time, out_steps = _WORDS.unpack_from(memory, 0)
    return Pulse(
        at=at,
        phase=_PHASES[phase] if phase < len(_PHASES) else Phase.START_UP,
        since=since,
        step_at=step_at,
        waited=waited,
        collectives=collectives,
        left=left,
        operation=operation,
        out_time=out_time,
        out_steps=out_steps,
    )


def counts_of(memory: bytes) -> dict[Phase, tuple[int, ...]]:
    """Return the counts of all phases of which anything was counted; `memory` is all of a pulse."""
    size = len(_NOTHING)
    found = {}
    for number, phase in enumerate(_PHASES):
        begin = _HEAD + number * size
        block = memory[begin : begin + size]
        if block != _NOTHING:
            found[phase] = struct.unpack(f"<{BUCKETS}I", block)
    return found


def bucket(nanoseconds: int) -> int:
    """Return in which bucket a length of time is counted; the start-up module has the same few lines of its own."""
    units = max(nanoseconds >> _UNIT_SHIFT, _LEAST)
    octave = units.bit_length() - 4
    return min((octave << 3) | ((units >> octave) & 7), BUCKETS - 1)


def upper(index: int) -> float:
    """Return the upper end of a bucket, in seconds."""
    octave, eighth = divmod(index, 8)
    return float(((9 + eighth) << octave) << _UNIT_SHIFT) / 1e9


def learned_of(phase: Phase, counts: Iterable[Sequence[int]]) -> Learned | None:
    """Return what the counts of several workers tell of a phase together, None where nothing was counted."""
    together = [sum(column) for column in zip(*counts, strict=True)]
    total = sum(together)
    if total == 0:
        return None
    beyond, seen, p99 = total - total // 100, 0, 0
    for index, number in enumerate(together):
        seen += number
        if seen >= beyond:
            p99 = index
            break
    longest = max(index for index, number in enumerate(together) if number)
    return Learned(phase=phase, count=total, p99=round(upper(p99), 6), longest=round(upper(longest), 6))
