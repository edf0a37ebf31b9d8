"""Entries of the directory through which the instances of a job's roles find each other.

Each process writes one entry for its role and rank. Of two lives of the same instance the newer one wins.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire import codec
from rallypoint.wire.bounds import PID
from rallypoint.wire.codec import WireError

__all__ = ["ENTRY_LIMIT", "QUEUE", "RoleEntry", "directory_token", "entry_name", "is_queue_name", "read_entry"]

#: Maximum size of an entry, in bytes.
ENTRY_LIMIT = 4096

#: Role under which the owner of a queue is entered; the name of the queue takes the place of the rank.
QUEUE = "queue"

_ROLE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_QUEUE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]{0,62}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LARGEST = 1 << 53


@dataclass(frozen=True, kw_only=True)
class RoleEntry:
    """Where one instance answers calls.

    Attributes:
        role, rank: of the instance; `size` is the number of instances of its role.
        queue: name of a queue that the instance owns; "" in the entry of the instance itself.
        host, port: where it listens; port 0 after the instance has ended.
        attempt, reset, round, incarnation: the order of the lives of an instance; `round` is 0 in simple roles.
        pid: of the process on its machine.
        id: random number of the process, as 32 hexadecimal digits.
    """

    limits: ClassVar = {"pid": PID}

    role: str
    rank: int
    size: int
    host: str
    port: int
    attempt: int
    reset: int
    round: int
    incarnation: int
    pid: int
    id: str
    queue: str = ""

    @property
    def life(self) -> tuple[int, int, int, int]:
        """Position among the lives of the same instance: of two entries the one with the larger value is right."""
        return self.attempt, self.reset, self.round, self.incarnation

    @property
    def name(self) -> str:
        """Key of the entry in the directory."""
        return entry_name(QUEUE, self.queue) if self.queue else entry_name(self.role, self.rank)


def entry_name(role: str, rank: int | str) -> str:
    """Return the key of an entry: `role.rank`, or `queue..name`, which no role can have."""
    return f"{QUEUE}..{rank}" if isinstance(rank, str) else f"{role}.{rank}"


def is_queue_name(name: object) -> bool:
    """Return whether a queue may have this name."""
    return isinstance(name, str) and _QUEUE.fullmatch(name) is not None


def directory_token(secret: bytes) -> str:
    """Return the token of requests to the directory's HTTP server; it does not reveal the secret of calls."""
    return hmac.digest(secret, b"rallypoint roles directory", "sha256").hex()


def read_entry(text: str | bytes) -> RoleEntry:
    """Read an entry that another process has written; raises `WireError`."""
    if len(text) > ENTRY_LIMIT:
        raise WireError("entry of the role directory", f"{len(text)} bytes", f"at most {ENTRY_LIMIT} bytes")
    entry = codec.loads(RoleEntry, text)
    checks = (
        ("role", entry.role, _ROLE.fullmatch(entry.role), "a role name"),
        ("queue", entry.queue, not entry.queue or is_queue_name(entry.queue), "1 to 63 letters, digits, '-' and '_'"),
        ("id", entry.id, _ID.fullmatch(entry.id), "32 hexadecimal digits"),
        ("host", entry.host, 0 < len(entry.host) <= 255 and entry.host.isprintable(), "a host name or address"),
        ("port", entry.port, 0 <= entry.port < 1 << 16, "a port, or 0"),
    )
    for field, value, good, allowed in checks:
        if not good:
            raise WireError(field, value, allowed)
    for field in ("rank", "size", "attempt", "reset", "round", "incarnation", "pid"):
        if not 0 <= getattr(entry, field) < _LARGEST:
            raise WireError(field, getattr(entry, field), "a number of at least 0")
    return entry
