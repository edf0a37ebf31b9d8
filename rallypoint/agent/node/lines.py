"""The agent's end of the lines to its workers (wire/line.py): who is connected, what they say, what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from rallypoint.agent.errors import ConfigError
from rallypoint.wire import line as wire
from rallypoint.wire.codec import WireError
from rallypoint.wire.private import private_folder
from rallypoint.wire.unix import reachable

__all__ = ["Lines"]

log = logging.getLogger("rallypoint.lines")

#: Told of what a worker says: its local rank and the word; None when its line is closed.
Heard = Callable[[int, "wire.FromWorker | None"], None]

_CREDENTIALS = struct.Struct("3i")

#: Begins the names of the folders of a node on the local backend, one for each of its agents.
_ATTEMPT = "attempt-"


class Lines:
    """All lines of one agent, by local rank: the last process that said hello for it."""

    def __init__(self, path: Path, heard: Heard) -> None:
        self.path, self._heard = path, heard
        self._server: asyncio.Server | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def begin(self) -> None:
        """Listen; raises `ConfigError` when the socket cannot be made."""
        await asyncio.to_thread(_remove_stale, self.path.parent)
        try:
            self._server = await asyncio.start_unix_server(self._serve, sock=_listening(self.path), limit=wire.MAX_LINE)
        except OSError as error:
            raise ConfigError(f"folder {self.path.parent}: cannot create {self.path.name}: {error.strerror}") from error

    def say(self, local_rank: int, word: wire.FromAgent) -> bool:
        """Tell a worker something; return False when it has no line."""
        writer = self._writers.get(local_rank)
        if writer is None or writer.is_closing():
            return False
        writer.write(wire.write(word))
        return True

    def close(self) -> None:
        """Hang up on everybody and remove the socket, with the files in which its workers agreed on step boundaries."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.close()
        with contextlib.suppress(OSError):
            for path in (self.path, *self.path.parent.glob(f"{self.path.name}.*")):
                path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _ours(writer):
            writer.close()
            return
        self._open.add(writer)
        local_rank = -1
        try:
            while said := await reader.readline():
                word = wire.read_from_worker(said)
                if isinstance(word, wire.Hello):
                    local_rank = word.local_rank
                    self._writers[local_rank] = writer
                if self._writers.get(local_rank) is writer:
                    self._heard(local_rank, word)
        except (OSError, ValueError) as error:  # a line that is too long is a `ValueError`, as a word that is none
            told = error if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
            log.warning("cannot read a message of a worker (%s); the agent closed its connection to this worker", told)
        finally:
            self._open.discard(writer)
            writer.close()
            if self._writers.get(local_rank) is writer:
                del self._writers[local_rank]
                self._heard(local_rank, None)


def _listening(path: Path) -> socket.socket:
    private_folder(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(stat.S_IRWXG | stat.S_IRWXO)
        try:
            with reachable(path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def _ours(writer: asyncio.StreamWriter) -> bool:
    """Return whether the other side runs as we do; whoever may not is kept out by the socket's mode already."""
    peer: socket.socket = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid in (os.geteuid(), 0)


def _remove_stale(folder: Path) -> None:
    """Remove the sockets that earlier agents of a node left because they were killed, with their shims.

    Only a folder of one attempt has folders of the same node beside it; that of a run by hand is in the folder of all users.
    """
    if not folder.name.startswith(_ATTEMPT):
        return
    with contextlib.suppress(OSError):  # another process may delete a folder at the same time
        for path in folder.parent.glob(f"{_ATTEMPT}*/line-*.sock*"):
            pid = path.name.removeprefix("line-").partition(".")[0]
            if pid.isdecimal() and _has_ended(pid):
                path.unlink(missing_ok=True)


def _has_ended(pid: str) -> bool:
    """Return whether a process is gone, or is a zombie: a process whose parent was killed with it may be one for seconds."""
    try:
        text = Path("/proc", pid, "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
