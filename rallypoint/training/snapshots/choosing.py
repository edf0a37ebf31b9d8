"""Which snapshot a world takes up, of all that its ranks can see. Pure: every rank comes to the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.checkpoint.manifest import Manifest
from rallypoint.checkpoint.memory import Part
from rallypoint.wire.fence import Fence

__all__ = ["Age", "Seen", "choose", "newer_than_stored", "seen_of"]

#: Fence and step; the greater is the newer.
Age = tuple[Fence, int]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A part that a rank can read; `node` names the memory that it lies in."""

    age: Age
    rank: int
    world_size: int
    whole: bool
    node: str


def seen_of(part: Part, node: str) -> Seen:
    """Return how a part is told to the others."""
    return Seen(age=part.age, rank=part.rank, world_size=part.world_size, whole=part.whole, node=node)


def choose(seen: Sequence[Sequence[Seen]]) -> Age | None:
    """Return the newest age of which nothing is missing; `seen` by rank."""
    every = [one for rank in seen for one in rank]
    for age in sorted({one.age for one in every}, reverse=True):
        parts = [one for one in every if one.age == age]
        if any(one.whole for one in parts) or {one.rank for one in parts} == set(range(parts[0].world_size)):
            return age
    return None


def newer_than_stored(age: Age, job: str, stored: Manifest | None) -> bool:
    """Return whether a snapshot in memory of the running job is at least as new as the newest complete checkpoint.

    What lies in memory is of this very run. A checkpoint of another job is older than that; of this job, its own fence tells.
    A run by hand has no uid that would tell its checkpoints from an earlier run's: there the later step is the newer.
    """
    if stored is None:
        return True
    if not job and not stored.job:
        return age[1] >= stored.step
    return stored.job != job or age >= (stored.granted, stored.step)
