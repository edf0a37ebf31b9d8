"""What a node check found, as numbers and as a picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from rallypoint.report.check_picture import matrix, picture, read_check
from rallypoint.wire import codec
from rallypoint.wire.check import AllNodes, CheckState, Link, NodeCheck, NodeFound, NodeVerdict, bandwidth_text
from rallypoint.wire.codec import WireError

_SVG = "{http://www.w3.org/2000/svg}"


def found(node: int, verdict: NodeVerdict = NodeVerdict.GOOD, reason: str = "") -> NodeFound:
    return NodeFound(node=node, incarnation=1, host=f"gpu-{node}", verdict=verdict, reason=reason)


CHECK = NodeCheck(
    number=1,
    level=2,
    state=CheckState.PASSED,
    reason="before the first round",
    started_at=0.0,
    rounds=2,
    count=4,
    nodes=(found(2, NodeVerdict.FAULT, "ECC <error> & more"), found(0), found(1), found(3)),
    links=(Link(nodes=(1, 2)), Link(nodes=(0, 1), bandwidth=1e9, latency=1e-5), Link(nodes=(0, 1, 3), bandwidth=3e9)),
    whole=AllNodes(nodes=3, ranks=3, moved=10, seconds=1.0, algbw=15.0, busbw=2e9),
)


def test_the_matrix_tells_failed_from_not_tried() -> None:
    """Rows follow the nodes' numbers, and groups of three are no pair."""
    told = matrix(CHECK)

    assert (told["nodes"], told["verdicts"]) == ([0, 1, 2, 3], ["good", "good", "fault", "good"])
    assert told["bandwidth"] == [[None, 1e9, None, None], [1e9, None, 0.0, None], [None, 0.0, None, None], [None] * 4]
    assert json.loads(json.dumps(told)) == told


def test_the_picture_has_a_cell_for_each_pair_and_says_what_it_is() -> None:
    """It is well-formed, whatever stands in an error."""
    root = ET.fromstring(picture(CHECK))
    cells = [one for one in root.findall(f"{_SVG}rect") if one.find(f"{_SVG}title") is not None]
    titles = [title.text for cell in cells if (title := cell.find(f"{_SVG}title")) is not None]

    assert len(cells) == 12
    assert titles.count("node 0 and node 1: 1 GB/s") == 1
    assert titles.count("node 2 and node 1: failed together") == 1
    assert "node 2 on gpu-2: fault, ECC <error> & more" in "".join(root.itertext())
    assert "all at once: 2 GB/s per rank" in "".join(root.itertext())


def test_a_check_of_nobody_has_a_picture_too() -> None:
    """An empty one."""
    empty = NodeCheck(number=1, level=1, state=CheckState.FAILED, reason="", started_at=0.0)
    assert ET.fromstring(picture(empty)).findall(f"{_SVG}title") == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(15.0, "15 B/s"), (2500.0, "2.5 kB/s"), (1.4e9, "1.4 GB/s"), (5e12, "5000 GB/s"), (999.9e6, "1 GB/s")],
)
def test_bandwidths_as_people_read_them(value: float, text: str) -> None:
    """A bandwidth is told in the unit that fits it."""
    assert bandwidth_text(value) == text


def test_a_result_is_read_back() -> None:
    """As a job hands it over; anything else is an error with its place."""
    assert read_check(json.loads(codec.dumps(CHECK))) == CHECK
    with pytest.raises(WireError):
        read_check({"accuracy": 0.9})
