"""`N` and `MIN:MAX`: one parser for job files, the command line, operators and launcher flags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.node_range import MAX_NODES, NodeRange, parse_node_range

numbers = st.integers(1, MAX_NODES)


@given(numbers, numbers)
def test_a_range_reads_back_from_its_text(one, other):
    """A single number when both ends are equal."""
    nodes = NodeRange(min=min(one, other), max=max(one, other))

    assert parse_node_range(str(nodes)) == nodes


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        True,
        MAX_NODES + 1,
        "",
        "0",
        "2:1",
        "0:1",
        "1:",
        ":1",
        "1:2:3",
        "1 : 2",
        " 1",
        "1\n",
        "+1",
        "1.0",
        "٣",
        "1:٣",
        "nan",
        "1e3",
    ],
)
def test_anything_else_is_refused(value):
    """The error shows the value and what is allowed."""
    with pytest.raises(
        ValueError, match=r"nodes: .* is not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX <= 16384"
    ) as refused:
        parse_node_range(value)

    assert repr(value) in str(refused.value)
