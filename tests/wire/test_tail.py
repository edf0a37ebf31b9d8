"""Last lines of files: which, and how many bytes are read for them."""

from __future__ import annotations

import io

import pytest

from rallypoint.wire.tail import LINE_BYTES, Bounds, last_lines, read_line

MIB = 1 << 20


class Counted(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.read_bytes = 0

    def read(self, size=-1):
        found = super().read(size)
        self.read_bytes += len(found)
        return found

    def readline(self, size=-1):
        found = super().readline(size)
        self.read_bytes += len(found)
        return found


def texts(content: bytes, **bounds) -> list[str]:
    return [str(line) for line in last_lines(io.BytesIO(content), Bounds(**bounds))]


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        pytest.param(b"", 3, [], id="empty"),
        pytest.param(b"one\ntwo\nthree\n", 2, ["two", "three"], id="fewer than there are"),
        pytest.param(b"one\ntwo\n", 9, ["one", "two"], id="more than there are"),
        pytest.param(b"one\ntwo", 2, ["one", "two"], id="the last one has no end"),
        pytest.param(b"one\n\n\n", 2, ["", ""], id="empty lines"),
        pytest.param(b"a\rb\r\nc\n", 2, ["a\rb", "c"], id="carriage returns end no line"),
        pytest.param(b"\xff\xfe\n", 1, ["��"], id="not UTF-8"),
        pytest.param(b"one\n", 0, [], id="none asked for"),
    ],
)
def test_the_last_lines_in_their_order(content, lines, expected):
    """As `tail` prints them."""
    assert texts(content, lines=lines) == expected


def test_an_unfinished_line_can_be_left_out():
    """It is read when it is whole."""
    file = io.BytesIO(b"one\ntw")

    assert [line.end for line in last_lines(file, Bounds(lines=5), whole_only=True)] == [4]


def test_lines_are_found_across_blocks():
    """Every line, at whatever offset the blocks begin."""
    content = b"".join(b"%d " % number + b"x" * (number % 97) + b"\n" for number in range(20_000))
    found = last_lines(io.BytesIO(content), Bounds(lines=5_000))

    assert [int(line.text.split()[0]) for line in found] == list(range(15_000, 20_000))
    assert found[-1].end == len(content)
    assert all(content[line.end - 1 : line.end] == b"\n" for line in found)


@pytest.mark.parametrize("content", [b"x" * 64 * MIB, b"x\n" * 8 * MIB], ids=["one line", "many lines"])
def test_a_large_file_is_read_within_the_bound(content):
    """Neither a line without end nor many lines cost more than the bound."""
    file = Counted(content)
    found = last_lines(file, Bounds(lines=100, size=MIB, width=2_000))

    assert file.read_bytes <= MIB + 64 * 1024
    assert 0 < len(found) <= 100
    assert sum(len(line.text) for line in found) <= 100 * 2_000


def test_what_is_left_out_is_said():
    """Of a long line its beginning is shown, or its end where the beginning was not read."""
    assert texts(b"a\n" + b"x" * 5_000 + b"\nb\n", lines=2, width=10) == ["x" * 10 + " ... (4990 bytes more)", "b"]
    assert texts(b"x" * MIB + b"end\n", lines=1, size=64 * 1024, width=5) == ["... xxend"]


@pytest.mark.parametrize("text", ["ä", "€", "😀"])
def test_no_character_is_cut_in_two(text):
    """Not at the width of a line, and not between two pieces of a long one."""
    long = (text * LINE_BYTES).encode()
    assert "�" not in texts(long, lines=1, size=2 * len(long), width=1_001)[0]

    file, pieces = io.BytesIO(b"a" + long + b"\nnext\n"), []
    while piece := read_line(file):
        assert len(piece) <= LINE_BYTES
        pieces.append(piece)
    assert b"".join(pieces) == b"a" + long + b"\nnext\n"
    assert "�" not in "".join(piece.decode(errors="replace") for piece in pieces)


def test_a_piece_of_a_long_line_costs_no_more_than_itself():
    """However long the rest of the line is."""
    file = Counted(b"x" * 8 * MIB)
    assert len(read_line(file)) == LINE_BYTES
    assert file.read_bytes <= LINE_BYTES + 1
