"""Who of a world that hangs is waited for, and where everybody stands, in few words. Pure.

Ranks that train together wait in a collective for the one that does not come. So, the surest first, to blame is who

1. is stopped, dead, or waits for a disk;
2. is behind: the lowest step where all ranks report steps, else the fewest signs of life;
3. is not in a collective while others are;
4. stands elsewhere than most.

Where none of this tells ranks apart, nobody is blamed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rallypoint.wire.hang import RankSeen
from rallypoint.wire.incident import RankGroup

__all__ = ["blame", "groups", "place"]

#: Ranks that are named of one group; groups that are told.
_NAMED, _GROUPS = 32, 8

#: A frame of a rank that waits for others: torch's collectives, and the backward pass in which DDP and FSDP have theirs.
_COLLECTIVE = re.compile(r"torch/distributed/|torch/autograd/|torch/_tensor\.py|torch/nn/parallel/distributed\.py")

#: The kernel's letters, in words.
_STATES: Mapping[str, str] = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "stopped",
    "Z": "ended",
    "X": "ended",
    "": "ended",
}
_STUCK = frozenset({"stopped", "waiting for a disk"})

Ranks = Mapping[int, RankSeen]


def blame(ranks: Ranks) -> tuple[int, ...]:
    """Return the ranks that the others wait for, in order; empty where nobody stands out."""
    living = {rank: seen for rank, seen in ranks.items() if _word(seen) != "ended"}
    for rule in (_stuck, _behind, _elsewhere, _alone):
        found = rule(living)
        if found and len(found) < len(living):
            return tuple(sorted(found))
    # Of one rank, and of several that are all stopped, nobody waits for another.
    return tuple(sorted(living)) if len(living) == 1 or (living and len(_stuck(living)) == len(living)) else ()


def _stuck(ranks: Ranks) -> Sequence[int]:
    return [rank for rank, seen in ranks.items() if _word(seen) in _STUCK]


def _behind(ranks: Ranks) -> Sequence[int]:
    count = _life if any(seen.step is None for seen in ranks.values()) else _step
    # Of a rank without any sign of life nobody knows whether it would show one.
    known = {rank: number for rank, seen in ranks.items() if (number := count(seen)) > 0}
    least, most = min(known.values(), default=0), max(known.values(), default=0)
    return [rank for rank, number in known.items() if number == least < most]


def _life(seen: RankSeen) -> int:
    return seen.liveness


def _step(seen: RankSeen) -> int:
    # The first step is 0 to some, and a sign of life to all.
    return 0 if seen.step is None else seen.step + 1


def _elsewhere(ranks: Ranks) -> Sequence[int]:
    return [rank for rank, seen in ranks.items() if seen.frames and not any(map(_COLLECTIVE.search, seen.frames))]


def _alone(ranks: Ranks) -> Sequence[int]:
    places = Counter(seen.frames for seen in ranks.values())
    [(most, count), *others] = places.most_common() or [((), 0)]
    if not others or others[0][1] == count:
        return []
    return [rank for rank, seen in ranks.items() if seen.frames != most]


def groups(ranks: Ranks, culprits: Sequence[int]) -> tuple[RankGroup, ...]:
    """Return the ranks put together by where they stand, the culprits first, then those who are furthest behind."""
    together: dict[tuple[bool, str, tuple[str, ...]], list[int]] = {}
    for rank in sorted(ranks):
        seen = ranks[rank]
        together.setdefault((rank in culprits, _word(seen), _told(seen)), []).append(rank)
    all_groups = [
        _group((ranks[rank] for rank in members), members, culprit=culprit, state=state, frames=frames)
        for (culprit, state, frames), members in together.items()
    ]
    all_groups.sort(key=lambda g: (not g.culprit, -1 if g.step is None else g.step, g.life, g.ranks))
    if len(all_groups) <= _GROUPS:
        return tuple(all_groups)
    rest = sum(len(g.ranks) + g.more for g in all_groups[_GROUPS - 1 :])
    return (*all_groups[: _GROUPS - 1], RankGroup(ranks=(), more=rest, frames=("elsewhere",)))


def _told(seen: RankSeen) -> tuple[str, ...]:
    return seen.frames or ((seen.note,) if seen.note else ())


def _group(seen: Iterable[RankSeen], ranks: list[int], *, culprit: bool, state: str, frames: tuple[str, ...]) -> RankGroup:
    all_seen = tuple(seen)
    steps = [one.step for one in all_seen if one.step is not None]
    return RankGroup(
        ranks=tuple(ranks[:_NAMED]),
        more=max(0, len(ranks) - _NAMED),
        culprit=culprit,
        step=min(steps, default=None),
        life=min(one.liveness for one in all_seen),
        quiet=round(max(one.quiet for one in all_seen), 1),
        cpu=round(sum(one.cpu for one in all_seen) / len(all_seen), 2),
        state=state,
        frames=frames,
    )


def place(seen: RankSeen) -> str:
    """Return in a few words where a rank stands: `sleeping in train.py:12 step`."""
    where = next((frame for frame in seen.frames if not _LIBRARY.match(frame)), next(iter(seen.frames), ""))
    return f"{_word(seen)} in {where}" if where else _word(seen) + (f" ({seen.note})" if seen.note else "")


#: A frame below the script: of a package (its path has a folder) or of a module of the standard library that waits for others.
_LIBRARY = re.compile(r"\S+/|(threading|socket|selectors|subprocess|queue|ssl)\.py:")


def _word(seen: RankSeen) -> str:
    return _STATES.get(seen.state, "unknown")
