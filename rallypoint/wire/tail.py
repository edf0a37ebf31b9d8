"""The last lines of a file that may be of any size: read from its end, within a bound of bytes, lines and characters.

The tab, the command line, the task's log and the messages about failed processes all read ends of logs through this module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["LINE_BYTES", "Bounds", "TailLine", "last_lines", "read_line"]

#: Longer lines are read in pieces of so many bytes.
LINE_BYTES = 64 * 1024

#: Bytes of one read.
_BLOCK = 64 * 1024

#: Bytes of a character in UTF-8 that follow its first one, at most.
_CONTINUATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much of a file's end is read: at most `lines` lines and `size` bytes; of each line `width` bytes are kept."""

    lines: int
    size: int = 2 << 20
    width: int = LINE_BYTES


@dataclass(frozen=True, kw_only=True)
class TailLine:
    """A line without its end.

    Attributes:
        text: its bytes as UTF-8, at most `Bounds.width` of them.
        end: offset of the first byte behind the line and its end.
        omitted: bytes of the line that are not in `text`. None for a line whose beginning was not read: it has at least as
            many as fit into the bound.
    """

    text: str
    end: int
    omitted: int | None = 0

    def __str__(self) -> str:
        if self.omitted is None:
            return f"... {self.text}"
        return f"{self.text} ... ({self.omitted} bytes more)" if self.omitted else self.text


def last_lines(file: BinaryIO, bounds: Bounds, *, whole_only: bool = False) -> list[TailLine]:
    """Return the last lines of a file that can seek, in their order; `whole_only` leaves out a last one without an end.

    Reads at most `bounds.size` bytes and one block more, however long the file and its lines are.
    """
    size = file.seek(0, os.SEEK_END)
    if bounds.lines <= 0 or size == 0:
        return []
    start, blocks, ends = size, list[bytes](), 0
    while start > 0 and size - start < bounds.size and ends <= bounds.lines:
        length = min(_BLOCK, start)
        start -= length
        file.seek(start)
        blocks.append(file.read(length))
        ends += blocks[-1].count(b"\n")
    return _lines(b"".join(reversed(blocks)), start, bounds, whole_only=whole_only)


def _lines(data: bytes, start: int, bounds: Bounds, *, whole_only: bool) -> list[TailLine]:
    found: list[TailLine] = []
    offset = start
    for line in _split(data):
        begun_before = offset == start and start > 0
        offset += len(line)
        if whole_only and not line.endswith(b"\n"):
            continue
        found.append(_shown(line.rstrip(b"\r\n"), offset, bounds.width, begun_before=begun_before))
    return found[-bounds.lines :]


def _split(data: bytes) -> list[bytes]:
    """Split at line feeds alone: a progress bar's carriage returns end no line."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _shown(line: bytes, end: int, width: int, *, begun_before: bool) -> TailLine:
    if begun_before:
        return TailLine(text=_decoded(line[max(0, len(line) - width) :]), end=end, omitted=None)
    kept = line[: _cut(line, width)]
    return TailLine(text=_decoded(kept), end=end, omitted=len(line) - len(kept))


def read_line(file: BinaryIO, *, limit: int = LINE_BYTES) -> bytes:
    """Return the next line with its end, or a piece of a longer one; b"" at the end of the file.

    A piece ends before a character of UTF-8 that it would cut in two; the file's position is behind the piece.
    """
    begin = file.tell()
    line = file.readline(limit + 1)
    if len(line) <= limit:
        return line
    piece = line[: _cut(line, limit)]
    file.seek(begin + len(piece))
    return piece


def _cut(line: bytes, width: int) -> int:
    """Return the largest length up to `width` that cuts no character of UTF-8 in two."""
    if len(line) <= width:
        return len(line)
    cut = width
    while cut > width - _CONTINUATIONS and cut > 0 and line[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if line[cut] & 0xC0 != 0x80 else width


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")
