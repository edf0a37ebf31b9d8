"""How a worker's line looks in the log of its pod, where all workers of a node share one stream with their agent.

    rallypoint[2/5/err] CUDA out of memory

is what rank 5 wrote to stderr in round 2. Whatever does not look so was said by the agent itself. No line is longer than
`LINE_BYTES`, so that no container runtime splits it: a longer one goes on in the next, which has the same front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LINE_BYTES", "PodLine", "front", "parse_line", "pieces"]

#: Bytes of a whole line, its front and its end included; container runtimes split at 16 KiB.
LINE_BYTES = 15 * 1024

#: What the front takes of that at the most.
_FRONT_BYTES = 64

_LINE = re.compile(r"rallypoint\[(\d{1,12})/(\d{1,12})/(out|err)\] (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class PodLine:
    """One line of one worker; `stream` is `out` or `err`."""

    round: int
    rank: int
    stream: str
    text: str


def front(round_: int, rank: int, stream: str) -> str:
    """Return what stands before the text of a line; raises `ValueError` for a stream that is neither `out` nor `err`."""
    if stream not in ("out", "err"):
        raise ValueError(f"stream: {stream!r} is not allowed; expected out or err")
    return f"rallypoint[{round_}/{rank}/{stream}] "


def parse_line(line: str) -> PodLine | None:
    """Return what a worker said, or None for a line of the agent's own; the end of the line may be there or not."""
    found = _LINE.fullmatch(line.removesuffix("\n"))
    if found is None:
        return None
    return PodLine(round=int(found[1]), rank=int(found[2]), stream=found[3], text=found[4])


def pieces(line: bytes) -> Iterator[bytes]:
    """Yield a worker's line in pieces that each fit into one line of the log; an empty line is one piece.

    A character of several bytes is never cut in two.
    """
    room = LINE_BYTES - _FRONT_BYTES
    while len(line) > room:
        cut = room
        while cut > room - 4 and line[cut] & 0xC0 == 0x80:  # inside of a character
            cut -= 1
        yield line[:cut]
        line = line[cut:]
    yield line
