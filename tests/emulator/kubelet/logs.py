"""What a container wrote, with the time of each line, as `pods/log` gives it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from tests.emulator.bodies import micro_stamp

__all__ = ["ContainerLog", "Line"]

#: So many bytes of a container are kept, as a kubelet keeps so much before it rotates.
KEPT = 10 << 20

#: A longer line is cut in two.
LONGEST = 16 << 10


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line, with its newline unless it was the last and had none."""

    time: float
    text: bytes

    def shown(self, *, timestamps: bool) -> bytes:
        return micro_stamp(self.time).encode() + b" " + self.text if timestamps else self.text


class ContainerLog:
    """Lines that come, with somebody waiting for them perhaps. The oldest go where there are too many."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self.dropped = 0
        self.closed = False
        self._bytes = 0
        self._part = b""
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        *whole, self._part = (self._part + data).split(b"\n")
        for text in whole:
            self._add(text + b"\n")
        while len(self._part) > LONGEST:
            self._add(self._part[:LONGEST])
            self._part = self._part[LONGEST:]

    def close(self) -> None:
        if self._part:
            self._add(self._part)
            self._part = b""
        self.closed = True
        self._wake()

    async def follow(self, position: int) -> int:
        """Wait until there is a line after `position`, or none will come any more; `position` counts dropped lines too."""
        while self.dropped + len(self.lines) <= position and not self.closed:
            await self._changed.wait()
        return position

    def after(self, position: int) -> list[Line]:
        return list(self.lines)[max(position - self.dropped, 0) :]

    def end(self) -> int:
        return self.dropped + len(self.lines)

    def tail(self, size: int) -> str:
        """The last `size` bytes as text."""
        return b"".join(line.text for line in self.lines)[-size:].decode(errors="replace")

    def _add(self, text: bytes) -> None:
        self.lines.append(Line(time=time.time(), text=text))
        self._bytes += len(text)
        while self._bytes > KEPT:
            self._bytes -= len(self.lines.popleft().text)
            self.dropped += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
