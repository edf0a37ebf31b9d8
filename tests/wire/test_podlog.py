"""The lines of workers in the log of their pod."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.podlog import LINE_BYTES, PodLine, front, parse_line, pieces


@given(
    round_=st.integers(min_value=1, max_value=10**9),
    rank=st.integers(min_value=0, max_value=10**9),
    stream=st.sampled_from(["out", "err"]),
    text=st.text().filter(lambda text: "\n" not in text),
)
def test_what_a_worker_said_is_read_back(round_: int, rank: int, stream: str, text: str) -> None:
    """Whatever it said, also what looks like a line of the log itself."""
    line = front(round_, rank, stream) + text

    assert parse_line(line) == parse_line(line + "\n") == PodLine(round=round_, rank=rank, stream=stream, text=text)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("", id="empty"),
        pytest.param("12:00:01.500 rallypoint.node: round 1: started ranks 0 to 1 of 4", id="the agent's own"),
        pytest.param(" rallypoint[1/0/out] text", id="not at its beginning"),
        pytest.param("rallypoint[1/0/log] text", id="no stream"),
        pytest.param("rallypoint[1/-1/out] text", id="no rank"),
        pytest.param("rallypoint[1/0/out]", id="no text"),
    ],
)
def test_all_else_is_the_agents_own(line: str) -> None:
    """It is nobody's log line, and no error."""
    assert parse_line(line) is None


def test_there_is_no_third_stream() -> None:
    """A wrong one is named."""
    with pytest.raises(
        ValueError,
        match="stream: 'log' is not allowed; expected out or err",
    ):
        front(1, 0, "log")


@given(text=st.text(alphabet="aé漢🙂", max_size=300), times=st.integers(min_value=1, max_value=200))
def test_pieces_fit_and_lose_nothing(text: str, times: int) -> None:
    """With the longest front each is a line that no container runtime splits, and each is text by itself."""
    line = (text * times).encode()
    cut = list(pieces(line))

    assert b"".join(cut) == line
    longest = len(front(10**11, 10**11, "out")) + 1
    assert all(len(piece) + longest <= LINE_BYTES and piece.decode() is not None for piece in cut)


def test_bytes_that_are_no_text_are_cut_too() -> None:
    """A worker may write anything."""
    line = b"\x80" * (3 * LINE_BYTES)

    assert b"".join(pieces(line)) == line
