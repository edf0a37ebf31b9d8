"""When what workers use with a batch may be measured. Pure.

A batch is written into a file, and a script takes it when it gets there; batches of the old size may still be on their way. So
the workers take some steps first. Then the peak of their memory begins anew, and after some more steps it is that of the batch.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Measuring", "Now"]

#: Steps of every worker before the peak begins anew, and from then on until it is read.
_BEFORE, _WHILE = 10, 10


class Now(enum.Enum):
    """What is to be done."""

    NOTHING = enum.auto()
    FORGET_PEAK = enum.auto()
    READ_PEAK = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """One batch of one node's workers.

    Attributes:
        batch: that they use, as far as is known; 0 for unknown.
        since: signs of life of each local rank when the wait began.
        fresh: the peak began anew then.
        done: it was read.
    """

    batch: int = 0
    since: Mapping[int, int] = field(default_factory=dict, hash=False)
    fresh: bool = False
    done: bool = False

    def looked(self, batch: int, steps: Mapping[int, int]) -> tuple[Measuring, Now]:
        """Return what is waited for next, and what is to be done now; `steps` are the signs of life of each local rank."""
        if batch != self.batch or steps.keys() != self.since.keys() or any(steps[rank] < self.since[rank] for rank in steps):
            return Measuring(batch=batch, since=dict(steps)), Now.NOTHING
        if not batch or not steps or self.done:
            return self, Now.NOTHING
        least = min(steps[rank] - self.since[rank] for rank in steps)
        if not self.fresh and least >= _BEFORE:
            return dataclasses.replace(self, since=dict(steps), fresh=True), Now.FORGET_PEAK
        if self.fresh and least >= _WHILE:
            return dataclasses.replace(self, done=True), Now.READ_PEAK
        return self, Now.NOTHING
