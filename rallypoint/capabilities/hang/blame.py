"""Who of a world that hangs is waited for. Pure.

Ranks that train together wait in a collective for the one that does not come. So, the surest first, to blame is who

1. is stopped, or waits for a disk; or whose device has reported an error in this round;
2. has not called the collective in which others wait, by the numbers of torch's flight recorder;
3. stands in no collective while others do; of several those that are furthest behind; or who has ended while all others wait;
4. gives no stack while all others wait;
5. is behind, while it waits for nobody: the lowest step where all ranks report steps, else the fewest signs of life;
6. came less far than most, or further: who left a collective out is ahead of those that wait in it, and of two the one ahead;
7. stands elsewhere than most.

Where none of this tells ranks apart, nobody is blamed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rallypoint.capabilities.hang.description import ended, word
from rallypoint.wire.hang import RankSeen

__all__ = ["blame", "far", "waits"]

#: The innermost frame of a rank that waits for others: torch's collectives and stores, and the backward pass in which DDP and
#: FSDP have theirs. A frame of the script above them is the script's own: a hook that they have called.
_COLLECTIVE = re.compile(r"torch/distributed/|torch/autograd/|torch/_tensor\.py|torch/nn/parallel/distributed\.py")

#: Of these a rank is busy by itself.
_OWN = re.compile(r"torch/distributed/(checkpoint|elastic)/")

_STUCK = frozenset({"stopped", "waiting for a disk"})

#: A collective as it is told: its number in its group.
_NUMBER = re.compile(r"^(?P<op>\S+) #(?P<number>\d+) of group (?P<group>\S+)")

Ranks = Mapping[int, RankSeen]


def blame(ranks: Ranks) -> tuple[int, ...]:
    """Return the ranks that the others wait for, in order; empty where nobody stands out."""
    living = {rank: seen for rank, seen in ranks.items() if not ended(seen)}
    gone = [rank for rank in ranks if rank not in living]
    if gone and living and all(map(waits, living.values())):
        return tuple(sorted(gone))
    for rule in (_stuck, _faulty, _not_called, _elsewhere, _silent, _behind, _off, _alone):
        found = rule(living)
        if found and len(found) < len(living):
            return tuple(sorted(found))
    # Of one rank, and of several that are all stopped, nobody waits for another.
    return tuple(sorted(living)) if len(living) == 1 or (living and len(_stuck(living)) == len(living)) else ()


def waits(seen: RankSeen) -> bool:
    """Return whether a rank waits for other ranks, as far as its stack tells."""
    inner = seen.frames[0] if seen.frames else ""
    return word(seen) not in _STUCK and bool(_COLLECTIVE.match(inner)) and not _OWN.match(inner)


def far(ranks: Ranks) -> Callable[[RankSeen], int]:
    """Return what tells how far a rank came: reported steps where all that live report them, else signs of life."""
    silent = any(seen.step is None for seen in ranks.values() if not ended(seen))
    return _life if silent else _step


def _life(seen: RankSeen) -> int:
    return seen.liveness


def _step(seen: RankSeen) -> int:
    # The first step is 0 to some, and a sign of life to all.
    return 0 if seen.step is None else seen.step + 1


def _stuck(ranks: Ranks) -> Sequence[int]:
    return [rank for rank, seen in ranks.items() if word(seen) in _STUCK]


def _faulty(ranks: Ranks) -> Sequence[int]:
    return [rank for rank, seen in ranks.items() if seen.device]


def _not_called(ranks: Ranks) -> Sequence[int]:
    """Return who has called fewer collectives of the group in which most ranks have theirs."""
    told = {rank: match for rank, seen in ranks.items() if (match := _NUMBER.match(seen.collective))}
    if len(told) < len(ranks) or len({match["group"] for match in told.values()}) != 1:
        return []
    numbers = {rank: int(match["number"]) for rank, match in told.items()}
    least, most = min(numbers.values()), max(numbers.values())
    behind = [rank for rank, number in numbers.items() if number == least < most]
    # Those who are behind and wait, wait for one who is ahead: it left theirs out.
    return [] if all(waits(ranks[rank]) for rank in behind) else behind


def _elsewhere(ranks: Ranks) -> Sequence[int]:
    found = {rank: seen for rank, seen in ranks.items() if seen.frames and not waits(seen)}
    if len(found) in (0, len(ranks)):
        return []
    return _least(found, far(ranks)) or list(found)


def _silent(ranks: Ranks) -> Sequence[int]:
    return [rank for rank, seen in ranks.items() if not seen.frames]


def _behind(ranks: Ranks) -> Sequence[int]:
    found = _least(ranks, far(ranks))
    return [] if all(waits(ranks[rank]) for rank in found) else found


def _least(ranks: Ranks, count: Callable[[RankSeen], int]) -> list[int]:
    # Of a rank without any sign of life nobody knows whether it would show one.
    known = {rank: number for rank, seen in ranks.items() if (number := count(seen)) > 0}
    least, most = min(known.values(), default=0), max(known.values(), default=0)
    return [rank for rank, number in known.items() if number == least < most]


def _off(ranks: Ranks) -> Sequence[int]:
    count = far(ranks)
    known = {rank: number for rank, seen in ranks.items() if (number := count(seen)) > 0}
    numbers = Counter(known.values()).most_common()
    if len(numbers) < 2:
        return []
    # Of as many on either side those are right that still wait for the others.
    usual = min(number for number, count_ in numbers if count_ == numbers[0][1])
    return [rank for rank, number in known.items() if number != usual]


def _alone(ranks: Ranks) -> Sequence[int]:
    places = Counter(seen.frames for seen in ranks.values())
    [(most, count), *others] = places.most_common() or [((), 0)]
    if not others or others[0][1] == count:
        return []
    return [rank for rank, seen in ranks.items() if seen.frames != most]
