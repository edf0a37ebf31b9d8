"""The results of a node check, as a matrix of numbers and as a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from rallypoint.wire import codec
from rallypoint.wire.check import MATRIX_VERSION, NodeCheck, NodeFound, NodeVerdict, bandwidth_text

__all__ = ["matrix", "picture", "read_check"]

_CELL, _SMALL, _MARGIN, _TEXT = 54, 14, 96, 11

#: Maximum number of nodes for which each cell shows its number.
_WITH_NUMBERS = 24

_INK, _EMPTY, _BAD, _PAPER = "#22303c", "#eef1f4", "#d64545", "#ffffff"
_LABELS = {NodeVerdict.FAULT: _BAD, NodeVerdict.UNKNOWN: "#8d6bb8", NodeVerdict.STRAGGLER: "#c77700", NodeVerdict.GOOD: _INK}

#: The slowest link and the fastest, as red, green and blue.
_SLOW, _FAST = (253, 224, 150), (44, 141, 108)


def read_check(result: Any) -> NodeCheck:
    """Read the node check in a job's result; raises `WireError` if the result is something else."""
    return codec.from_json(NodeCheck, result, lenient=True)


def matrix(check: NodeCheck) -> dict[str, Any]:
    """Return the bandwidths between nodes as plain JSON.

    `nodes` are the numbers and `hosts` the machines of rows and columns; `bandwidth` holds bytes per second, `latency` seconds:
    None where two nodes were not tried together, 0.0 where they failed. Groups of three are no pair, and left out.
    """
    nodes = sorted(check.nodes, key=lambda found: found.node)
    at = {found.node: i for i, found in enumerate(nodes)}
    bandwidth: list[list[float | None]] = [[None] * len(nodes) for _ in nodes]
    latency: list[list[float | None]] = [[None] * len(nodes) for _ in nodes]
    for link in check.links:
        if len(link.nodes) != 2 or not at.keys() >= set(link.nodes):
            continue
        one, other = (at[node] for node in link.nodes)
        bandwidth[one][other] = bandwidth[other][one] = link.bandwidth
        latency[one][other] = latency[other][one] = link.latency
    return {
        "version": MATRIX_VERSION,
        "nodes": [found.node for found in nodes],
        "hosts": [found.host for found in nodes],
        "verdicts": [found.verdict.value for found in nodes],
        "bandwidth": bandwidth,
        "latency": latency,
    }


def picture(check: NodeCheck) -> str:
    """Return the matrix as an SVG document: darker is faster, red has failed, pale was not tested."""
    nodes = sorted(check.nodes, key=lambda found: found.node)
    numbers: list[list[float | None]] = matrix(check)["bandwidth"]
    side = _CELL if len(nodes) <= _WITH_NUMBERS else _SMALL
    width = _MARGIN + side * len(nodes) + 16
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{width + 24}" font-family="sans-serif">',
            f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
            *_labels(nodes, side),
            *_cells(nodes, numbers, side),
            f'<text x="8" y="{width + 14}" font-size="{_TEXT}" fill="{_INK}">{escape(_caption(check))}</text>',
            "</svg>\n",
        )
    )


def _labels(nodes: list[NodeFound], side: int) -> Iterator[str]:
    for i, found in enumerate(nodes):
        middle = _MARGIN + side * i + side / 2
        title = escape(f"node {found.node} on {found.host}: {found.verdict.value}{f', {found.reason}' if found.reason else ''}")
        style = f'font-size="{min(_TEXT, side - 2)}" fill="{_LABELS[found.verdict]}"'
        name = f"<title>{title}</title>node {found.node}"
        yield f'<text x="{_MARGIN - 6}" y="{middle + 4:g}" text-anchor="end" {style}>{name}</text>'
        turned = f'transform="translate({middle + 4:g} {_MARGIN - 6}) rotate(-60)"'
        yield f"<text {turned} {style}>{name}</text>"


def _cells(nodes: list[NodeFound], numbers: list[list[float | None]], side: int) -> Iterator[str]:
    known = [value for row in numbers for value in row if value]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    for i, row in enumerate(numbers):
        for j, value in enumerate(row):
            if i == j:
                continue
            x, y = _MARGIN + side * j, _MARGIN + side * i
            told = "not tested together" if value is None else "failed together" if value == 0 else bandwidth_text(value)
            title = escape(f"node {nodes[i].node} and node {nodes[j].node}: {told}")
            square = f'x="{x}" y="{y}" width="{side - 1}" height="{side - 1}" fill="{_color(value, low, high)}"'
            yield f"<rect {square}><title>{title}</title></rect>"
            if value is not None and side == _CELL:
                place = f'x="{x + side / 2 - 0.5:g}" y="{y + side / 2 + 3:g}" text-anchor="middle" font-size="9"'
                yield f'<text {place} fill="{_INK}">{"failed" if value == 0 else escape(bandwidth_text(value))}</text>'


def _color(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _EMPTY
    if value == 0:
        return _BAD
    part = 1.0 if high <= low else (value - low) / (high - low)
    red, green, blue = (round(slow + part * (fast - slow)) for slow, fast in zip(_SLOW, _FAST, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _caption(check: NodeCheck) -> str:
    told = f"{check.count} nodes, {check.rounds} rounds"
    if check.whole is not None and not check.whole.error:
        told += f"; all at once: {bandwidth_text(check.whole.busbw)} per rank"
    return f"{told}; {check.left_out} not shown" if check.left_out else told
