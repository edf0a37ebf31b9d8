"""Long JSON text is read as `json.loads` reads it, and other threads run meanwhile."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rallypoint.wire import bounds, codec, sanitize
from rallypoint.wire.fence import Fence
from rallypoint.wire.sanitize import parse_long
from rallypoint.wire.status import JobState, JobStatus, Member, RankStatus

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of a few characters are long ones."""
    monkeypatch.setattr(sanitize, "_PART", 6)


def outcome(parse: Any, text: str) -> str:
    """Return the value as text, since NaN does not equal itself, or that there is none."""
    try:
        return repr(parse(text))
    except (ValueError, RecursionError):
        return "refused"


@given(JSON, st.sampled_from([None, 0, 3]))
def test_any_value_is_read(value: Any, indent: int | None) -> None:
    """With and without spaces; the numbers that JSON does not have as well."""
    text = json.dumps(value, indent=indent)

    assert outcome(parse_long, text) == outcome(json.loads, text)


@given(JSON, st.integers(0, 200), st.sampled_from(['"', ",", ":", "]", "}", "[", "{", "\\", " ", "1", "x", "\x00", ""]))
@example([1, 2], 3, ",")
@example({"a": 1}, 4, "}")
def test_a_damaged_text_is_refused_where_json_refuses_it(value: Any, place: int, damage: str) -> None:
    """One character is replaced or left out."""
    text = json.dumps(value)
    place %= len(text)
    damaged = text[:place] + damage + text[place + 1 :]

    assert outcome(parse_long, damaged) == outcome(json.loads, damaged)


def test_a_text_that_is_nested_too_deep_is_refused() -> None:
    """It raises `ValueError`, whatever its length."""
    for text in ("[" * 100_000, '{"a":' * 50_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            sanitize.parse(text + " " * sanitize.LONG)


def test_a_nested_text_takes_time_by_its_length() -> None:
    """Each list of a chain is longer than a part; the scanner does not read the same text again for each of them."""
    chain = "[" * 470 + '"' + "x" * (1 << 14) + '"' + "]" * 470
    text = "[" + ",".join([chain] * 100) + "]"

    def seconds(parse: Callable[[str], Any]) -> float:
        began = time.thread_time()
        parse(text)
        return time.thread_time() - began

    assert min(seconds(parse_long) for _ in range(3)) < 30 * min(seconds(json.loads) for _ in range(3))


def test_long_texts_take_this_way() -> None:
    """As text and as bytes; NaN stays a number here."""
    text = json.dumps({"a": [1.5, math.nan], "b": "é" * sanitize.LONG}, ensure_ascii=False)

    for form in (text, text.encode()):
        assert repr(sanitize.parse(form)) == repr(json.loads(text))


def test_the_status_of_16384_ranks_can_be_read() -> None:
    """The limits leave room for any job; its text is read whole."""
    status = JobStatus(
        job="large",
        uid="u1",
        fence=Fence(attempt=1, term=1, round=1),
        state=JobState.RUNNING,
        world=tuple(
            Member(node=n, incarnation=1, agent=f"host-{n}-4711-{n:08x}", host=f"host-{n}", local_world_size=8, group_rank=n)
            for n in range(2048)
        ),
        ranks=tuple(RankStatus(rank=r, node=r // 8, local_rank=r % 8, pid=100_000 + r, step=10**6) for r in range(16384)),
    )
    text = codec.dumps(status)

    assert bounds.excess(text.encode()) == ""
    assert codec.loads(JobStatus, text) == status
