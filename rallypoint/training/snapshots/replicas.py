"""Offers snapshots to the agent, which keeps them on another node, too; one offer at a time (wire/replica.py)."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.replica import SOCKET, Offer, Settled
from rallypoint.wire.unix import reachable

__all__ = ["Replicas"]

_log = logging.getLogger(__name__)

#: Seconds that training waits for the last offer before it makes the next. After that the neighbour may have another step than
#: the others have kept, and a lost node costs what it costs without a replica.
_PATIENCE = 120.0


class Replicas:
    """The offers of one worker.

    Args:
        folder: of its agent's snapshots.
        local_rank: whose area is offered.
        every: steps whose number is a multiple of it are offered.

    """

    def __init__(self, folder: Path, local_rank: int, every: int) -> None:
        self._folder, self._local_rank, self._every = folder, local_rank, every
        self._socket: socket.socket | None = None
        self._pending = False
        self._given_up = False

    def due(self, step: int) -> bool:
        """Return whether the snapshot of `step` is one of those that are offered."""
        return step % self._every == 0

    def offer(self, fence: Fence, step: int) -> None:
        """Offer a complete snapshot; `settle` comes before the next one."""
        if self._given_up:
            return
        try:
            if self._socket is None:
                self._socket = self._connected()
            word = Offer(local_rank=self._local_rank, fence=fence, step=step)
            self._socket.sendall(codec.dumps(word).encode() + b"\n")
        except OSError as error:
            self._give_up(f"cannot send to the agent: {error}")
        else:
            self._pending = True

    def settle(self) -> None:
        """Return when the last offer is settled; why it came to nothing the agent's log says."""
        if not self._pending or self._socket is None:
            return
        self._pending = False
        try:
            told = codec.loads(Settled, _line(self._socket))
        except (OSError, ValueError) as error:
            self._give_up(f"the agent does not answer: {error}")
            return
        if told.error:
            _log.debug("the snapshot of step %d has no copy on another node: %s", told.step, told.error)

    def close(self) -> None:
        """Hang up; what is under way goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(_PATIENCE)
            with reachable(self._folder / SOCKET) as address:
                connected.connect(address)
        except BaseException:
            connected.close()
            raise
        return connected

    def _give_up(self, why: str) -> None:
        _log.warning("snapshots of this worker have no copies on other nodes: %s", why)
        self._given_up = True
        self.close()


def _line(connected: socket.socket) -> bytes:
    text = bytearray()
    while not text.endswith(b"\n"):
        piece = connected.recv(4096)
        if not piece:
            raise ConnectionError("the agent closed the connection")
        text += piece
    return bytes(text)
