"""Decide whether the evidence of the ranks supports a suspected hang. Pure.

In a hang, at least one rank waits: for another rank, a lock or a disk. If all ranks compute, the job may do work that it does
not report. Then a hang is plausible only if some ranks wait in a collective that others have not called: a rank that waits on
a GPU also uses its CPU.
"""

from __future__ import annotations

import re

from rallypoint.capabilities.hang.blame import Ranks, waits
from rallypoint.capabilities.hang.description import ended
from rallypoint.wire.hang import RankSeen

__all__ = ["BUSY", "looks_hung"]

#: Number of CPU cores above which a rank counts as computing.
BUSY = 0.5

#: A collective in the form of torch's flight recorder, with its number within its group.
_NUMBER = re.compile(r"^\S+ (?P<number>#\d+) of group (?P<group>[^\s,]+)")


def looks_hung(ranks: Ranks) -> bool:
    """Return whether the ranks seem to hang; False without evidence of a living rank."""
    living = [seen for seen in ranks.values() if not ended(seen)]
    if not living:
        return False
    if any(seen.device for seen in living):
        return True
    if not all(map(_computes, living)):
        return True
    waiting = sum(map(waits, living))
    return 0 < waiting < len(living) or _apart(living)


def _apart(living: list[RankSeen]) -> bool:
    """Return whether the last collectives of the ranks, in one group, have different numbers: then some ranks wait."""
    told = [match for seen in living if (match := _NUMBER.match(seen.collective))]
    return len(told) == len(living) and len({m["group"] for m in told}) == 1 and len({m["number"] for m in told}) > 1


def _computes(seen: RankSeen) -> bool:
    return seen.state not in ("T", "t") and (seen.cpu >= BUSY or seen.state == "R")
