"""Whether what was found of the ranks bears out that they hang. Pure.

Of a world that hangs somebody waits: for a rank that does not come, for a lock, for a disk. Where every rank is busy computing,
it may as well be at work on something that it does not tell, so that is borne out only if some wait in a collective and others
do not come to it: on a GPU who waits is busy, too.
"""

from __future__ import annotations

import re

from rallypoint.capabilities.hang.blame import Ranks, waits
from rallypoint.capabilities.hang.description import ended
from rallypoint.wire.hang import RankSeen

__all__ = ["BUSY", "borne_out"]

#: Cores that a rank uses which computes.
BUSY = 0.5

#: A collective as torch's flight recorder has it: its number in its group.
_NUMBER = re.compile(r"^\S+ (?P<number>#\d+) of group (?P<group>[^\s,]+)")


def borne_out(ranks: Ranks) -> bool:
    """Return whether the ranks look as if they hang; what nobody has found bears nothing out."""
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
    """Return whether the ranks have called different collectives of one group last: some of them wait there."""
    told = [match for seen in living if (match := _NUMBER.match(seen.collective))]
    return len(told) == len(living) and len({m["group"] for m in told}) == 1 and len({m["number"] for m in told}) > 1


def _computes(seen: RankSeen) -> bool:
    return seen.state not in ("T", "t") and (seen.cpu >= BUSY or seen.state == "R")
