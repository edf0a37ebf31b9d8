"""Limits of unauthenticated connections at a port. Pure: connections are any objects, `now` is an argument.

A connection is a *stranger* until it has authenticated. Strangers have a deadline, a limit per peer, and two total limits: of
their number and of the memory that they use. Above a limit the oldest stranger is closed in favour of the new one: an agent
authenticates with its first message, a few milliseconds after it has connected, while an idle stranger becomes old. So the
limits do not lock out agents, even if many of them share one address. Above the limit of memory, it is the oldest stranger of
the peer that uses most. Authenticated connections are never closed because of strangers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["PATIENCE", "Connections", "Limits", "peer_of"]

T = TypeVar("T")

#: Seconds in which a connection must authenticate.
PATIENCE = 10.0

#: Bytes of memory that all strangers of a port may use.
_HELD = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Connection limits of a port.

    Attributes:
        most: all connections.
        strangers: connections that have not authenticated.
        per_peer: strangers of one address.
        patience: seconds in which a stranger must authenticate; None for no deadline.
        held: bytes of memory that all strangers may use.
    """

    most: int
    strangers: int
    per_peer: int
    patience: float | None
    held: int = _HELD

    @classmethod
    def few(cls, most: int, patience: float | None = PATIENCE) -> Limits:
        """Return limits by which all connections may be strangers, half of them of one address."""
        return cls(most=most, strangers=most, per_peer=max(most // 2, 2), patience=patience)


class Connections(Generic[T]):
    """The open connections of one port."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._proven: set[T] = set()
        #: Strangers with their peer and arrival time, oldest first; and the same per peer.
        self._strangers: dict[T, tuple[str, float]] = {}
        self._peers: dict[str, dict[T, None]] = {}
        #: Per peer, the bytes of strangers that use some, in the order in which they began to; and their sums.
        self._held: dict[str, dict[T, int]] = {}
        self._sums: dict[str, int] = {}
        self._sum = 0

    def __contains__(self, connection: object) -> bool:
        return connection in self._proven or connection in self._strangers

    def __iter__(self) -> Iterator[T]:
        yield from (*self._proven, *self._strangers)

    def __len__(self) -> int:
        return len(self._proven) + len(self._strangers)

    @property
    def strangers(self) -> int:
        """Connections that have not authenticated."""
        return len(self._strangers)

    @property
    def held(self) -> int:
        """Bytes of memory that strangers use."""
        return self._sum

    def opened(self, connection: T, peer: str, now: float) -> list[T]:
        """Add a stranger; return the connections to close for it: itself if authenticated connections use the whole limit."""
        limits, ended = self._limits, []
        self._strangers[connection] = peer, now
        self._peers.setdefault(peer, {})[connection] = None
        if len(self._peers[peer]) > limits.per_peer:
            ended.append(next(iter(self._peers[peer])))
        elif len(self._strangers) > limits.strangers or len(self) > limits.most:
            ended.append(next(iter(self._strangers)))
        for one in ended:
            self.closed(one)
        return ended

    def holding(self, connection: T, size: int) -> list[T]:
        """Set the bytes that a stranger uses; return the strangers to close, the oldest of the peer that uses most."""
        if connection not in self._strangers:
            return []
        self._hold(connection, self._strangers[connection][0], size)
        ended = []
        while self._sum > self._limits.held:
            one = next(iter(self._held[max(self._sums, key=self._sums.__getitem__)]))
            self.closed(one)
            ended.append(one)
        return ended

    def _hold(self, connection: T, peer: str, size: int) -> None:
        mine = self._held.setdefault(peer, {})
        more = size - mine.get(connection, 0)
        self._sum += more
        self._sums[peer] = self._sums.get(peer, 0) + more
        if size:
            mine[connection] = size
        else:
            mine.pop(connection, None)
        if not mine:
            del self._held[peer], self._sums[peer]

    def proven(self, connection: T) -> None:
        """Mark a connection as authenticated; ignores a connection that has ended."""
        if self._forget_stranger(connection):
            self._proven.add(connection)

    def closed(self, connection: T) -> None:
        """Remove a connection; ignored the second time."""
        self._proven.discard(connection)
        self._forget_stranger(connection)

    def replaced(self, old: T, new: T) -> None:
        """Replace the object of a stranger by `new`, which is the same connection."""
        if old in self._strangers:
            self._strangers = {new if one is old else one: value for one, value in self._strangers.items()}
            mine = self._peers[self._strangers[new][0]]
            del mine[old]
            mine[new] = None
            held = self._held.get(self._strangers[new][0], {})
            if old in held:
                held[new] = held.pop(old)

    def expired(self, now: float) -> list[T]:
        """Remove and return the strangers whose deadline has passed."""
        ended = []
        while self._strangers and self._limits.patience is not None:
            connection, (_, since) = next(iter(self._strangers.items()))
            if now < since + self._limits.patience:
                break
            self.closed(connection)
            ended.append(connection)
        return ended

    def shed(self) -> list[T]:
        """Remove and return the older half of the strangers."""
        ended = list(self._strangers)[: (len(self._strangers) + 1) // 2]
        for connection in ended:
            self.closed(connection)
        return ended

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a stranger."""
        if not self._strangers or self._limits.patience is None:
            return None
        return next(iter(self._strangers.values()))[1] + self._limits.patience

    def _forget_stranger(self, connection: T) -> bool:
        known = self._strangers.pop(connection, None)
        if known is None:
            return False
        self._hold(connection, known[0], 0)
        mine = self._peers[known[0]]
        del mine[connection]
        if not mine:
            del self._peers[known[0]]
        return True


def peer_of(host: str) -> str:
    """Return the peer of an address: an IPv4 address, or the 64-bit network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
