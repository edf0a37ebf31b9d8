"""The one ordered value that tells new from stale."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["Fence"]


@dataclass(frozen=True, order=True, kw_only=True)
class Fence:
    """Which attempt, which coordinator and which rendezvous round speaks.

    Compared field by field in this order. Whoever has seen a higher fence refuses a lower one.

    Attributes:
        attempt: number of the job's attempt, from 1; a job reset adds one.
        term: number of the coordinator within the job, from 1; granted by compare-and-swap in the job's record.
        round: number of the rendezvous round within the attempt, from 1; 0 before the first.
    """

    attempt: int = 0
    term: int = 0
    round: int = 0

    def with_round(self, number: int) -> Fence:
        """Return this fence at another round."""
        return dataclasses.replace(self, round=number)

    def __str__(self) -> str:
        return f"{self.attempt}.{self.term}.{self.round}"
