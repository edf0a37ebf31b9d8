"""Copying workers' log files to the console, or into the log of their pod, line by line, each with a prefix."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rallypoint.agent.linux import give_back
from rallypoint.agent.waiting import in_background, set_within

__all__ = ["DEFAULT_PREFIX", "Tail", "Tee", "prefix_of"]

log = logging.getLogger("rallypoint.logs")

#: torchrun's; TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE replaces it there as well as here.
DEFAULT_PREFIX = "[${role_name}${local_rank}]:"

#: Seconds between two looks at the files. The console is for people; nothing waits for it.
_PERIOD = 0.1

#: Seconds that the console has to take the last lines of a round.
_PATIENCE = 5.0

#: Bytes read from one file in one go, and the longest line that is kept together.
_CHUNK = 1 << 16

#: Bytes that are given back to the disk in one go, at the least.
_GIVEN_BACK = 1 << 20

_BLOCK = 4096


def prefix_of(template: str, *, role: str, rank: int, local_rank: int) -> bytes:
    """Return the prefix of one worker's lines; an unknown name in the template stays as it is."""
    text = string.Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)
    return text.encode()


@dataclass(kw_only=True)
class Tail:
    """One file that is copied.

    Attributes:
        path, to, prefix: from where, whither, and what is put before each line.
        cut: gives the pieces of a line that is too long to be one; each has the prefix. None leaves it whole.
        keep: bytes of what was copied that stay on the disk, None for all of them.
        only: lines without any of these texts are passed over; empty passes none over.
        own: `to` is this copy's own file, and closed after its last line.
        offset, rest: how far it was read, and the beginning of a line that is not complete yet.
        given_back: so much of the file takes no room any more.
    """

    path: Path
    prefix: bytes
    to: BinaryIO
    cut: Callable[[bytes], Iterable[bytes]] | None = None
    keep: int | None = None
    only: tuple[bytes, ...] = ()
    own: bool = False
    offset: int = 0
    rest: bytes = b""
    given_back: int = 0

    def drain(self, *, final: bool = False) -> None:
        """Copy the complete lines that were added; `final` copies the beginning of a line too."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                while chunk := file.read(_CHUNK):
                    self.offset += len(chunk)
                    self._take(chunk)
        except FileNotFoundError:
            return
        if final and self.rest:
            self._write([self.rest])
            self.rest = b""
        self._give_back()

    def _give_back(self) -> None:
        """Let the disk forget what was copied long ago. The file seems as long as before: its writer appends to it."""
        if self.keep is None:
            return
        until = (self.offset - self.keep) // _BLOCK * _BLOCK
        if until - self.given_back < _GIVEN_BACK:
            return
        with self.path.open("rb+") as file:
            give_back(file.fileno(), self.given_back, until - self.given_back)
        self.given_back = until

    def _take(self, chunk: bytes) -> None:
        *lines, rest = (self.rest + chunk).split(b"\n")
        if len(rest) > _CHUNK:
            lines, rest = [*lines, rest], b""
        self.rest = rest
        self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        if self.only:
            lines = [line for line in lines if any(text in line for text in self.only)]
        if self.cut is not None:
            lines = [piece for line in lines for piece in self.cut(line)]
        if lines:
            self.to.write(b"".join(self.prefix + line + b"\n" for line in lines))
            self.to.flush()


class Tee:
    """The files of the running round."""

    def __init__(self) -> None:
        self._tails: list[Tail] = []
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, tail: Tail) -> None:
        """Copy one more file from now on."""
        self._tails.append(tail)
        if self._task is None:
            self._task = in_background(self._run(), log, "copying the output of the workers")

    async def finish(self) -> None:
        """Copy what is left of all files, then forget them: their writers have ended."""
        if self._task is None:
            return
        self._over.set()
        # A console that nobody reads blocks the writer for ever; the next round must not wait for it.
        await asyncio.wait({self._task}, timeout=_PATIENCE)
        self._task = None
        self._tails = []
        self._over = asyncio.Event()

    async def _run(self) -> None:
        over = self._over
        while not await set_within(over, _PERIOD):
            await asyncio.to_thread(_drain_all, tuple(self._tails), final=False)
        await asyncio.to_thread(_drain_all, tuple(self._tails), final=True)


def _drain_all(tails: tuple[Tail, ...], *, final: bool) -> None:
    for tail in tails:
        # A console that went away (closed pipe) must not end the training.
        with contextlib.suppress(OSError):
            tail.drain(final=final)
        if final and tail.own:
            tail.to.close()
