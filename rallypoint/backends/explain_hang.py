"""Where the ranks of a world stood that hung: who is behind whom, the culprit first, and a picture of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rallypoint.backends.hang_picture import drawn
from rallypoint.backends.story import span
from rallypoint.wire.incident import Incident, RankGroup
from rallypoint.wire.places import RankSpan

__all__ = ["behind_lines", "evidence_lines", "hang_lines", "ranks_of"]


def hang_lines(incident: Incident, *, plain: bool = False) -> Iterator[str]:
    """Yield all that is known of where the ranks stood; nothing where nothing is. `plain` draws with ASCII alone."""
    for number, line in enumerate(behind_lines(incident)):
        yield f"  {'behind' if number == 0 else '':8} {line}"
    for number, line in enumerate(drawn(incident, plain=plain)):
        yield f"  {'picture' if number == 0 else '':8} {line}"
    yield from evidence_lines(incident.evidence)


def behind_lines(incident: Incident) -> Iterator[str]:
    """Yield who is behind whom in a sentence for each group that waits; nothing where nobody stands out."""
    late = [place for place in incident.places if place.culprit]
    others = [place for place in incident.places if not place.culprit]
    if not late or not others:
        return
    one = _count(late) == 1
    who, verb = _named(late), ("is" if one else "are")
    unit = "step" if _in_steps(incident) else "heartbeat"
    gap = _gap(late, others)
    waiting = [place for place in others if place.waits]
    told = f", which wait{'s' if _count(waiting) == 1 else ''} for {'it' if one else 'them'}" if waiting == others else ""
    if gap > 0:
        yield f"{who} {verb} {_many(gap, unit)} behind {_named(others)}{told}"
    elif gap < 0:
        yield (
            f"{who} {verb} {_many(-gap, unit)} ahead of {_named(others)}{told}; "
            f"{who} skipped the operation that the others wait for"
        )
    else:
        yield f"{who} {verb} at the same point as {_named(others)}{told}"


def _gap(late: Sequence[RankSpan], others: Sequence[RankSpan]) -> int:
    """Return how far culprits are behind the first of the others, below zero how far they are ahead of the last."""
    ahead = max(place.most for place in others) - min(place.least for place in late)
    return ahead if ahead >= 0 else min(place.least for place in others) - max(place.most for place in late)


def _in_steps(incident: Incident) -> bool:
    return bool(incident.evidence) and all(group.step is not None for group in incident.evidence if group.ranks)


def _many(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _count(places: Iterable[RankSpan]) -> int:
    return sum(place.count for place in places)


def _named(places: Sequence[RankSpan], most: int = 6) -> str:
    """Return `rank 3`, or `ranks 0-2, 4`, or `28 ranks of 24-969`."""
    if not all(place.whole for place in places) or len(places) > most:
        first, last = min(place.first for place in places), max(place.last for place in places)
        return f"{_count(places)} ranks of {first}-{last}"
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] + 1 == place.first:
            runs[-1] = (runs[-1][0], place.last)
        else:
            runs.append((place.first, place.last))
    told = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'' if _count(places) == 1 else 's'} {told}"


def evidence_lines(groups: Iterable[RankGroup]) -> Iterator[str]:
    """Yield where the ranks stood, each group with its stack; nothing where nothing is known."""
    for number, group in enumerate(groups):
        yield f"  {'stood' if number == 0 else '':8} {_head(group)}"
        yield from (f"    {frame} (native)" for frame in group.native)
        yield from (f"    {frame}" for frame in group.frames)


def _head(group: RankGroup) -> str:
    told = [group.state] if group.state else []
    if group.phase:
        told.append(f"in {group.phase}")
    if group.step is not None:
        told.append(f"step {group.step}")
    if group.ranks:
        told += [f"{group.life} heartbeats", f"silent for {span(group.quiet)}", f"{group.cpu:.0%} of a core"]
    if group.gpu:
        told.append(f"GPU {group.gpu:.0%} busy")
    if group.device:
        told.append(group.device)
    if group.collective:
        told.append(f"last collective {group.collective}")
    waited = " (the others wait for it)" if group.culprit and len(group.ranks) + group.more == 1 else ""
    waited = waited or (" (the others wait for them)" if group.culprit else "")
    return f"{ranks_of(group)}{waited}: {', '.join(told)}" if told else f"{ranks_of(group)}{waited}"


def ranks_of(group: RankGroup) -> str:
    """Return `rank 3`, or `ranks 0-2, 5 and 4 more`."""
    if not group.ranks:
        return f"{group.more} more ranks"
    more = f" and {group.more} more" if group.more else ""
    return f"rank{'' if len(group.ranks) == 1 and not group.more else 's'} {', '.join(_runs(group.ranks))}{more}"


def _runs(ranks: tuple[int, ...]) -> Iterator[str]:
    """Yield ranks in order, those without a gap as `0-2`."""
    first = last = ranks[0]
    for rank in (*ranks[1:], -1):
        if rank == last + 1:
            last = rank
            continue
        yield str(first) if first == last else f"{first}-{last}"
        first = last = rank
