"""Short descriptions of the ranks of a hanging world: where each one is and how far it came. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rallypoint.wire.hang import RankSeen
from rallypoint.wire.incident import RankGroup
from rallypoint.wire.places import RankSpan, fold, spans

__all__ = ["ended", "groups", "place", "places", "word"]

#: Ranks that are named of one group; groups that are told; runs of ranks that are told.
_NAMED, _GROUPS, _SPANS = 32, 8, 16

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

#: A frame below the script: of a package or of the standard library (its path has a folder); or that stands for many.
_LIBRARY = re.compile(r"\S+/|<frozen |\.\.\. ")

Ranks = Mapping[int, RankSeen]


def word(seen: RankSeen) -> str:
    """Return the state of a rank's process in words."""
    return _STATES.get(seen.state, "unknown")


def ended(seen: RankSeen) -> bool:
    """Return whether a rank's process is gone."""
    return word(seen) == "ended"


def place(seen: RankSeen) -> str:
    """Return in a few words where a rank stands: `sleeping in train.py:12 step`."""
    where = next((frame for frame in seen.frames if not _LIBRARY.match(frame)), next(iter(seen.frames), ""))
    stands = f"{word(seen)} in {where}" if where else word(seen) + (f" ({seen.note})" if seen.note else "")
    busy = f", GPU {seen.gpu:.0%} busy" if seen.gpu else ""
    return f"{stands}{busy}" + (f"; {seen.device}" if seen.device else "")


def places(
    ranks: Ranks, culprits: Sequence[int], *, far: Callable[[RankSeen], int], waits: Callable[[RankSeen], bool]
) -> tuple[RankSpan, ...]:
    """Return how far each rank came, in a bounded size; ranks of which nothing was found are left out."""
    told = ((rank, far(ranks[rank]), rank in culprits, waits(ranks[rank])) for rank in sorted(ranks))
    return fold(spans(told), _SPANS)


def groups(ranks: Ranks, culprits: Sequence[int]) -> tuple[RankGroup, ...]:
    """Return the ranks put together by where they stand, the culprits first, then those who are furthest behind."""
    together: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(ranks):
        seen = ranks[rank]
        together.setdefault((rank in culprits, word(seen), _told(seen), seen.phase, seen.collective, seen.device), []).append(
            rank
        )
    all_groups = [_group([ranks[rank] for rank in members], members, members[0] in culprits) for members in together.values()]
    all_groups.sort(key=lambda g: (not g.culprit, -1 if g.step is None else g.step, g.life, g.ranks))
    if len(all_groups) <= _GROUPS:
        return tuple(all_groups)
    rest = sum(len(g.ranks) + g.more for g in all_groups[_GROUPS - 1 :])
    return (*all_groups[: _GROUPS - 1], RankGroup(ranks=(), more=rest, frames=("elsewhere",)))


def _told(seen: RankSeen) -> tuple[str, ...]:
    return seen.frames or ((seen.note,) if seen.note else ())


def _group(all_seen: Sequence[RankSeen], ranks: Sequence[int], culprit: bool) -> RankGroup:  # noqa: FBT001
    steps = [one.step for one in all_seen if one.step is not None]
    first = all_seen[0]
    return RankGroup(
        ranks=tuple(ranks[:_NAMED]),
        more=max(0, len(ranks) - _NAMED),
        culprit=culprit,
        step=min(steps, default=None),
        life=min(one.liveness for one in all_seen),
        quiet=round(max(one.quiet for one in all_seen), 1),
        cpu=round(_mean(one.cpu for one in all_seen), 2),
        state=word(first),
        frames=_told(first),
        native=first.native,
        phase=first.phase,
        collective=first.collective,
        gpu=round(_mean(one.gpu for one in all_seen), 2),
        device=first.device,
    )


def _mean(numbers: Iterable[float]) -> float:
    known = tuple(numbers)
    return sum(known) / len(known)
