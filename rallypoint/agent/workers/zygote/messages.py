"""Messages between an agent, its zygote and its standbys: small JSON objects over Unix sockets, with file descriptors.

A message to the zygote is one packet. A message to a standby is a length and the bytes, because an environment may be larger
than a packet. Both ends have the same version: the agent starts the zygote from its own files.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PACKET", "Memory", "Order", "frame", "packet", "receive", "unpacked"]

#: Bytes of the longest packet.
PACKET = 1 << 16

#: Descriptors that come with one order, at the most: streams, and whatever else a command keeps.
_FDS = 16

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a standby becomes.

    Attributes:
        argv: the command line of a Python program, as a shell would have it.
        env: its whole environment.
        cwd: where it starts; "" is where the agent is.
        startup: file of the start-up module that a fork runs as every Python of a worker does; "" is none.
        streams: which of stdout (1) and stderr (2) come as descriptors; the others are the agent's.
        keep: numbers that the further descriptors must have.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)
    cwd: str = ""
    startup: str = ""
    streams: tuple[int, ...] = ()
    keep: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Order:
        """Return what `to_json` gave."""
        return cls(
            argv=tuple(data["argv"]),
            env=dict(data["env"]),
            cwd=data["cwd"],
            startup=data["startup"],
            streams=tuple(data["streams"]),
            keep=tuple(data["keep"]),
        )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a standby costs, in bytes: `own` is shared with nobody, `share` its part of everything (PSS). 0 is not known."""

    own: int = 0
    share: int = 0


def packet(message: Mapping[str, Any]) -> bytes:
    """Return a message as one packet."""
    return json.dumps(message).encode()


def unpacked(data: bytes) -> dict[str, Any]:
    """Return the message in a packet."""
    message: dict[str, Any] = json.loads(data)
    return message


def frame(message: Mapping[str, Any]) -> bytes:
    """Return a message with its length in front."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def receive(line: socket.socket) -> tuple[dict[str, Any] | None, Sequence[int]]:
    """Wait for one framed message and its descriptors; None when the other end is gone."""
    head, fds, _, _ = socket.recv_fds(line, _LENGTH.size, _FDS)
    head += _exactly(line, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size:
        return None, fds
    size = _LENGTH.unpack(head)[0]
    body = _exactly(line, size)
    return (unpacked(body) if len(body) == size else None), fds


def _exactly(line: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = line.recv(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
