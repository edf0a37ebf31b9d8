"""Ranks against steps when a world hung, as lines for a terminal and as an SVG document. Pure.

A bar for each run of neighbouring ranks, from left to right how far they came. What they have begun is drawn behind it: ranks
that wait in a collective are in the midst of the next step, and a culprit that came as far as they did is not there yet. Only
the last steps are shown, since that is where ranks differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rallypoint.wire.incident import Incident, RankGroup
from rallypoint.wire.places import RankSpan, fold

__all__ = ["drawn", "picture"]

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
    """Return what a run of ranks was doing, in a word or two."""
    mine = next((g for g in groups if place.first in g.ranks and g.culprit == place.culprit), None)
    state = f"{mine.state}" if mine is not None and mine.state else ""
    if place.culprit:
        return f"the others wait ({state})" if state else "the others wait"
    return "waits" if place.waits else state


# --- A terminal ------------------------------------------------------------------------------------------------------------


def drawn(incident: Incident, *, plain: bool = False) -> Iterator[str]:
    """Yield the picture as lines; nothing where nothing is known. `plain` uses ASCII alone."""
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
    """Return the picture as an SVG document; without ranks it says so."""
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
    for size in (factor * 10**power for power in range(12) for factor in (1, 2, 5)):
        if (axis.last - axis.first) / size <= 10:
            break
    yield from range(-(-axis.first // size) * size, axis.last + 1, size)
