"""Draw the supervisor's state machine from its own table: `python tools/states.py [FILE]` writes docs/images/states.svg.

Every arrow is one of `TRANSITIONS`, and every one of `TRANSITIONS` is an arrow; where the boxes stand, how the arrows run and
what is written on them is told here. A transition that has no route is drawn as a straight line, so that a new one is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rallypoint.supervision.reconcile import TRANSITIONS
from rallypoint.supervision.record import Phase

__all__ = ["draw", "edges", "main"]

_FILE = Path(__file__).resolve().parents[1] / "docs" / "images" / "states.svg"

_WIDTH, _HEIGHT = 1080, 700
_BOX = (132, 52)

#: From one line of words to the next.
_LINE = 15

#: The frame around every phase that may be deleted.
_FRAME = (24, 30, 1032, 556)

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A box: its middle, what is written below the name, and its colours."""

    at: Point
    says: str
    fill: str
    line: str


_GREY, _BLUE, _AMBER, _GREEN, _RED = (
    ("#f4f4f5", "#71717a"),
    ("#eaf2ff", "#3b6fd4"),
    ("#fff5e0", "#c27803"),
    ("#e8f7ee", "#218a52"),
    ("#fdecec", "#c93a3a"),
)


def _look(at: Point, says: str, colors: tuple[str, str]) -> _Look:
    return _Look(at=at, says=says, fill=colors[0], line=colors[1])


_LOOKS: Mapping[Phase, _Look] = {
    Phase.EMPTY: _look((116, 240), "just submitted", _GREY),
    Phase.SUSPENDED: _look((116, 420), "holds nothing", _GREY),
    Phase.RESUMING: _look((390, 240), "being created", _BLUE),
    Phase.RUNNING: _look((664, 240), "warms up, trains", _GREEN),
    Phase.RESETTING: _look((570, 420), "being deleted", _AMBER),
    Phase.SUSPENDING: _look((330, 536), "being deleted", _AMBER),
    Phase.SUCCEEDED: _look((960, 240), "its quota is free", _GREEN),
    Phase.FAILED: _look((960, 96), "for good", _RED),
    Phase.TERMINATING: _look((540, 652), "then nothing is left", _GREY),
}


@dataclass(frozen=True, kw_only=True)
class _Route:
    """A cubic curve, and where its words stand."""

    points: tuple[Point, Point, Point, Point]
    words: str
    at: Point
    anchor: str = "middle"


_ROUTES: Mapping[tuple[Phase, Phase], _Route] = {
    (Phase.EMPTY, Phase.RESUMING): _Route(
        points=((182, 240), (230, 240), (270, 240), (318, 240)), words="at once", at=(250, 230)
    ),
    (Phase.EMPTY, Phase.SUSPENDED): _Route(
        points=((116, 266), (116, 310), (116, 340), (116, 388)), words="submitted\nsuspended", at=(126, 322), anchor="start"
    ),
    (Phase.SUSPENDED, Phase.RESUMING): _Route(
        points=((182, 408), (270, 390), (320, 350), (348, 272)), words="resumed", at=(240, 376), anchor="end"
    ),
    (Phase.RESUMING, Phase.RUNNING): _Route(
        points=((456, 240), (500, 240), (550, 240), (592, 240)), words="deployed", at=(524, 230)
    ),
    (Phase.RESUMING, Phase.RESETTING): _Route(
        points=((442, 266), (466, 320), (500, 350), (546, 389)), words="not created\nin time", at=(494, 302), anchor="start"
    ),
    (Phase.RESUMING, Phase.FAILED): _Route(
        points=((390, 214), (420, 110), (640, 92), (888, 92)), words="can never be created, or no retry left", at=(600, 82)
    ),
    (Phase.RESUMING, Phase.SUSPENDING): _Route(
        points=((376, 266), (378, 360), (365, 440), (342, 504)), words="suspended", at=(356, 440), anchor="end"
    ),
    (Phase.RUNNING, Phase.SUCCEEDED): _Route(
        points=((730, 240), (790, 240), (840, 240), (888, 240)), words="every pod\nended well", at=(809, 216)
    ),
    (Phase.RUNNING, Phase.FAILED): _Route(
        points=((706, 214), (770, 160), (820, 126), (888, 106)),
        words="terminal,\nor no retry left",
        at=(822, 152),
        anchor="start",
    ),
    (Phase.RUNNING, Phase.RESETTING): _Route(
        points=((656, 266), (656, 320), (640, 360), (612, 389)), words="failed past\nits grace", at=(660, 328), anchor="start"
    ),
    (Phase.RUNNING, Phase.SUSPENDING): _Route(
        points=((706, 266), (800, 440), (720, 556), (402, 541)), words="suspended", at=(744, 448), anchor="start"
    ),
    (Phase.RESETTING, Phase.RESUMING): _Route(
        points=((504, 402), (446, 386), (416, 340), (406, 272)), words="gone,\npause\nover", at=(432, 308), anchor="start"
    ),
    (Phase.RESETTING, Phase.SUSPENDING): _Route(
        points=((520, 446), (494, 482), (456, 506), (402, 522)), words="suspended", at=(492, 488), anchor="start"
    ),
    (Phase.SUSPENDING, Phase.SUSPENDED): _Route(
        points=((264, 530), (190, 520), (140, 490), (124, 452)), words="everything\nis gone", at=(150, 520), anchor="end"
    ),
}

_STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",Arial,sans-serif;text-anchor:middle}
.name{font-size:16px;font-weight:600}.says{font-size:11.5px;fill:#52525b}
.words{font-size:12px;fill:#3f3f46;paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}
.arrow{fill:none;stroke:#52525b;stroke-width:1.5}.frame{fill:none;stroke:#a1a1aa;stroke-width:1.2;stroke-dasharray:5 5}"""


_TIP = """\
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 1 10 5 0 9z" fill="#52525b"/></marker></defs>"""


def edges() -> frozenset[tuple[str, str]]:
    """Return every transition of the table, as names."""
    return frozenset((name(source), name(target)) for source, targets in TRANSITIONS.items() for target in targets)


def name(phase: Phase) -> str:
    """Return a phase's name; the first one has none of its own."""
    return phase.value or "Empty"


def draw() -> str:
    """Return the picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">',
        "<title>The phases of a job</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="14" fill="#ffffff"/>',
        *_deletion(),
    ]
    for source, targets in TRANSITIONS.items():
        for target in sorted(targets, key=name):
            if target is not Phase.TERMINATING:
                lines.extend(_arrow(source, target))
    lines.extend(line for phase in Phase for line in _box(phase))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _deletion() -> Iterator[str]:
    """Yield one arrow for all that may be deleted: the frame stands for every phase in it."""
    sources = sorted(name(source) for source, targets in TRANSITIONS.items() if Phase.TERMINATING in targets)
    left, top, width, height = _FRAME
    x, y = _LOOKS[Phase.TERMINATING].at
    yield f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}" rx="18"/>'
    tip = y - _BOX[1] / 2 - 4
    ends = f'data-from="{" ".join(sources)}" data-to="{name(Phase.TERMINATING)}"'
    yield f'<path class="arrow" {ends} d="M{x} {top + height} L{x} {tip:g}" marker-end="url(#tip)"/>'
    yield f'<text class="words" x="{x + 10}" y="{top + height + 24}" style="text-anchor:start">deleted</text>'


def _arrow(source: Phase, target: Phase) -> Iterator[str]:
    route = _ROUTES.get((source, target))
    ends = f'data-from="{name(source)}" data-to="{name(target)}"'
    if route is None:
        (x1, y1), (x2, y2) = _LOOKS[source].at, _LOOKS[target].at
        yield f'<path class="arrow" {ends} d="M{x1:g} {y1:g} L{x2:g} {y2:g}" marker-end="url(#tip)"/>'
        return
    start, *curve = (f"{x:g} {y:g}" for x, y in route.points)
    yield f'<path class="arrow" {ends} d="M{start} C{", ".join(curve)}" marker-end="url(#tip)"/>'
    yield from _words(route)


def _words(route: _Route) -> Iterator[str]:
    x, y = route.at
    for number, line in enumerate(route.words.splitlines()):
        place = f'x="{x:g}" y="{y + number * _LINE:g}" style="text-anchor:{route.anchor}"'
        yield f'<text class="words" {place}>{escape(line)}</text>'


def _box(phase: Phase) -> Iterator[str]:
    look = _LOOKS[phase]
    (x, y), (width, height) = look.at, _BOX
    yield (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}" rx="12" '
        f'fill="{look.fill}" stroke="{look.line}" stroke-width="1.6"/>'
    )
    yield f'<text class="name" x="{x:g}" y="{y - 1:g}" fill="{look.line}">{name(phase)}</text>'
    yield f'<text class="says" x="{x:g}" y="{y + 16:g}">{escape(look.says)}</text>'


def main(arguments: Sequence[str]) -> int:
    """Write the picture into the file that `arguments` name, or into docs/images; return 0."""
    path = Path(arguments[0]) if arguments else _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
