"""Where the ranks of a world stood that hung: who is behind whom, the culprit first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rallypoint.backends.story import span
from rallypoint.wire.incident import RankGroup

__all__ = ["evidence_lines", "ranks_of"]


def evidence_lines(groups: Iterable[RankGroup]) -> Iterator[str]:
    """Yield where the ranks stood, each group with its stack; nothing where nothing is known."""
    for number, group in enumerate(groups):
        yield f"  {'stood' if number == 0 else '':8} {_head(group)}"
        yield from (f"    {frame}" for frame in group.frames)


def _head(group: RankGroup) -> str:
    told = [group.state] if group.state else []
    if group.step is not None:
        told.append(f"step {group.step}")
    if group.ranks:
        told += [f"{group.life} signs of life", f"silent for {span(group.quiet)}", f"{group.cpu:.0%} of a core"]
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
