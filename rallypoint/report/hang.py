"""Positions of the ranks in a hang: which ranks are behind, the culprit first, and a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rallypoint.report.format import counted, span
from rallypoint.wire.incident import Incident, RankGroup
from rallypoint.wire.places import RankSpan, fold

__all__ = ["behind_lines", "drawn", "evidence_lines", "hang_lines", "picture", "ranks_of"]

#: Rows of the picture: in a terminal, in a file. Columns of a bar in a terminal.
_LINES, _ROWS, _COLUMNS = 16, 40, 40

#: Steps before the last of the slowest rank that are shown at the least, and in all at the most.
_BEFORE, _SHOWN = 4, 60

_BLOCKS, _PLAIN = "█▒", "#."

_INK, _GRID, _PAPER, _DONE, _WAITS, _BAD = "#22303c", "#e3e8ec", "#ffffff", "#2c8d6c", "#a9d5c4", "#d64545"
_LEFT, _WIDTH, _ROW, _TOP = 130, 520, 24, 52
_FONT = f'font-family="sans-serif" font-size="12" fill="{_INK}"'


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """The steps that are shown: `first` to `last`."""

    first: int
    last: int
    unit: str

    def part(self, far: float) -> float:
        """Return where a step lies, from 0 to 1."""
        return min(1.0, max(0.0, (far - self.first) / (self.last - self.first)))


def _axis(incident: Incident, places: Sequence[RankSpan]) -> _Axis:
    low, high = min(p.least for p in places), max(p.most for p in places)
    first = max(0, low - _BEFORE, high - _SHOWN) if high - low <= _SHOWN else max(0, low - _BEFORE)
    steps = all(group.step is not None for group in incident.evidence if group.ranks) and bool(incident.evidence)
    return _Axis(first=first, last=high + 1, unit="reported steps" if steps else "optimizer steps and reports")


def _label(place: RankSpan) -> str:
    if place.first == place.last:
        return str(place.first)
    return f"{place.first}-{place.last}" if place.whole else f"{place.count} of {place.first}-{place.last}"


def _far(place: RankSpan) -> str:
    return str(place.most) if place.least == place.most else f"{place.least} to {place.most}"


def _note(place: RankSpan, groups: Sequence[RankGroup]) -> str:
    """Return the activity of a group of ranks in a few words."""
    mine = next((g for g in groups if place.first in g.ranks and g.culprit == place.culprit), None)
    state = f"{mine.state}" if mine is not None and mine.state else ""
    if place.culprit:
        return f"the others wait ({state})" if state else "the others wait"
    return "waits" if place.waits else state


# --- A terminal ------------------------------------------------------------------------------------------------------------


def drawn(incident: Incident, *, plain: bool = False) -> Iterator[str]:
    """Yield the picture as lines; nothing without data. `plain` uses only ASCII."""
    places = fold(incident.places, _LINES)
    if not places:
        return
    axis = _axis(incident, places)
    full, half = tuple(_PLAIN if plain else _BLOCKS)
    width = max(len("ranks"), *(len(_label(place)) for place in places))
    ends = f"{axis.first}{axis.last!s:>{_COLUMNS - len(str(axis.first))}}"
    yield f"{'ranks':>{width}}  {ends}  {axis.unit}"
    for place in places:
        bar = _bar(place, axis, full, half)
        mark = ("<- " if plain else "◄ ") if place.culprit else ""
        yield f"{_label(place):>{width}}  {bar:<{_COLUMNS}}  {_far(place)} {mark}{_note(place, incident.evidence)}".rstrip()


def _bar(place: RankSpan, axis: _Axis, full: str, half: str) -> str:
    done = max(1, round(_COLUMNS * axis.part(place.least)))
    begun = round(_COLUMNS * axis.part(place.most + (0.6 if place.waits else 0.0)))
    return full * done + half * (begun - done)


# --- A file ----------------------------------------------------------------------------------------------------------------


def picture(incident: Incident, title: str) -> str:
    """Return the picture as an SVG document."""
    places = fold(incident.places, _ROWS)
    height = _TOP + _ROW * max(1, len(places)) + 44
    width = _LEFT + _WIDTH + 250
    body = _empty() if not places else _rows(incident, places, _axis(incident, places))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_FONT}>',
            f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
            f'<text x="12" y="24" font-size="14">{escape(_cut(title, 110))}</text>',
            *body,
            "</svg>\n",
        )
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _empty() -> Iterator[str]:
    yield f'<text x="12" y="{_TOP + 16}">No data about its ranks.</text>'


def _rows(incident: Incident, places: Sequence[RankSpan], axis: _Axis) -> Iterator[str]:
    bottom = _TOP + _ROW * len(places)
    for step in _ticks(axis):
        x = _LEFT + _WIDTH * axis.part(step)
        yield f'<line x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="11">{step}</text>'
    for row, place in enumerate(places):
        yield from _row(place, _TOP + _ROW * row, axis, _note(place, incident.evidence))
    yield f'<text x="{_LEFT}" y="{bottom + 34}" font-size="11">{axis.unit}; pale: started, waiting for others</text>'
    yield f'<text x="{_LEFT - 10}" y="{_TOP - 8}" text-anchor="end" font-size="11">ranks</text>'


def _row(place: RankSpan, top: int, axis: _Axis, note: str) -> Iterator[str]:
    color = _BAD if place.culprit else _DONE
    done = max(2.0, _WIDTH * axis.part(place.least))
    begun = _WIDTH * axis.part(place.most + (0.6 if place.waits else 0.0))
    height = _ROW - 6
    title = escape(f"ranks {_label(place)}: {_far(place)}; {note}")
    yield f'<text x="{_LEFT - 10}" y="{top + height - 5}" text-anchor="end">{_label(place)}</text>'
    yield f'<rect x="{_LEFT}" y="{top}" width="{done:.1f}" height="{height}" fill="{color}"><title>{title}</title></rect>'
    if begun > done:
        yield f'<rect x="{_LEFT + done:.1f}" y="{top}" width="{begun - done:.1f}" height="{height}" fill="{_WAITS}"/>'
    style = f' fill="{_BAD}" font-weight="bold"' if place.culprit else ""
    told = escape(_cut(f"{_far(place)}  {note}", 40))
    yield f'<text x="{_LEFT + max(done, begun) + 8:.1f}" y="{top + height - 5}"{style}>{told}</text>'


def _ticks(axis: _Axis) -> Iterator[int]:
    """Yield some steps at round numbers."""
    size = 1
    for size in (factor * 10**power for power in range(20) for factor in (1, 2, 5)):
        if (axis.last - axis.first) / size <= 10:
            break
    yield from range(-(-axis.first // size) * size, axis.last + 1, size)


def hang_lines(incident: Incident, *, plain: bool = False) -> Iterator[str]:
    """Yield all data about the positions of the ranks; nothing without data. `plain` uses only ASCII."""
    for number, line in enumerate(behind_lines(incident)):
        yield f"  {'behind' if number == 0 else '':8} {line}"
    for number, line in enumerate(drawn(incident, plain=plain)):
        yield f"  {'picture' if number == 0 else '':8} {line}"
    yield from evidence_lines(incident.evidence)


def behind_lines(incident: Incident) -> Iterator[str]:
    """Yield a sentence for each group that causes the hang; nothing if no group differs from the others."""
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
        yield f"{who} {verb} {counted(gap, unit)} behind {_named(others)}{told}"
    elif gap < 0:
        yield (
            f"{who} {verb} {counted(-gap, unit)} ahead of {_named(others)}{told}; "
            f"{who} skipped the operation that the others wait for"
        )
    else:
        yield f"{who} {verb} at the same point as {_named(others)}{told}"


def _gap(late: Sequence[RankSpan], others: Sequence[RankSpan]) -> int:
    """Return how far the culprits are behind the first of the others; negative if they are ahead of the last."""
    ahead = max(place.most for place in others) - min(place.least for place in late)
    return ahead if ahead >= 0 else min(place.least for place in others) - max(place.most for place in late)


def _in_steps(incident: Incident) -> bool:
    return bool(incident.evidence) and all(group.step is not None for group in incident.evidence if group.ranks)


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
    """Yield the positions of the ranks, each group with its stack; nothing without data."""
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
