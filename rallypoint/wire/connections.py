"""Limits of unauthenticated connections at a port. Pure: connections are any objects, `now` is an argument.

A connection is a *stranger* until it has authenticated. Strangers have a deadline, a limit per peer, and two total limits: of
their number and of the memory that they use. Above a limit the oldest stranger is closed in favour of the new one: an agent
authenticates with its first message, a few milliseconds after it has connected, while an idle stranger becomes old. So the
limits do not lock out agents, even if many of them share one address. Above the limit of memory, it is the oldest stranger of
the peer that uses most. Authenticated connections are never closed because of strangers.

A stranger that has its response is *answered*: it stays open for a moment, so that its client can read the response. Answered
connections take no place from others: above a limit they are closed first, and at most half of all strangers are answered.
"""

from __future__ import annotations

import functools
import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["HELD", "PATIENCE", "Connections", "Limits", "peer_of"]

T = TypeVar("T")

#: Seconds in which a connection must authenticate.
PATIENCE = 10.0

#: Bytes of memory that all strangers of a port may use.
HELD = 1 << 26


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
    held: int = HELD

    @classmethod
    def few(cls, most: int, patience: float | None = PATIENCE) -> Limits:
        """Return limits by which all connections may be strangers, half of them of one address."""
        return cls(most=most, strangers=most, per_peer=max(most // 2, 2), patience=patience)


class Connections(Generic[T]):
    """The open connections of one port."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._proven: set[T] = set()
        #: Strangers without a response, with their peer and arrival time, oldest first; and the same per peer. The oldest of an
        #: `OrderedDict` is found at once, that of a `dict` behind all that were deleted.
        self._strangers: OrderedDict[T, tuple[str, float]] = OrderedDict()
        self._peers: dict[str, OrderedDict[T, None]] = {}
        #: Strangers with a response, with their peer and the time of the response, oldest first.
        self._answered: OrderedDict[T, tuple[str, float]] = OrderedDict()
        #: Per peer, the bytes of strangers that use some, in the order in which they began to; and their sums.
        self._held: dict[str, dict[T, int]] = {}
        self._sums: dict[str, int] = {}
        self._sum = 0

    def __contains__(self, connection: object) -> bool:
        return connection in self._proven or connection in self._strangers or connection in self._answered

    def __iter__(self) -> Iterator[T]:
        yield from (*self._proven, *self._strangers, *self._answered)

    def __len__(self) -> int:
        return len(self._proven) + self.strangers

    @property
    def strangers(self) -> int:
        """Connections that have not authenticated."""
        return len(self._strangers) + len(self._answered)

    @property
    def held(self) -> int:
        """Bytes of memory that strangers use."""
        return self._sum

    def opened(self, connection: T, peer: str, now: float) -> list[T]:
        """Add a stranger; return the connections to close for it: itself if authenticated connections use the whole limit."""
        limits, ended = self._limits, []
        self._strangers[connection] = peer, now
        self._peers.setdefault(peer, OrderedDict())[connection] = None
        if len(self._peers[peer]) > limits.per_peer:
            ended.append(next(iter(self._peers[peer])))
        elif self.strangers > limits.strangers or len(self) > limits.most:
            ended.append(next(iter(self._answered or self._strangers)))
        for one in ended:
            self.closed(one)
        return ended

    def answered(self, connection: T, now: float) -> list[T]:
        """Mark a stranger as answered; return the connections to close, the one that was answered first."""
        known = self._strangers.get(connection)
        if known is None:
            return []
        self._forget_place(connection, known[0])
        self._answered[connection] = known[0], now
        if len(self._answered) <= max(self._limits.strangers // 2, 1):
            return []
        ended = next(iter(self._answered))
        self.closed(ended)
        return [ended]

    def holding(self, connection: T, size: int) -> list[T]:
        """Set the bytes that a stranger uses; return the strangers to close, the oldest of the peer that uses most."""
        known = self._strangers.get(connection) or self._answered.get(connection)
        if known is None:
            return []
        self._hold(connection, known[0], size)
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
        """Replace the object of a stranger without a response by `new`, which is the same connection."""
        if old in self._strangers:
            self._strangers = OrderedDict((new if one is old else one, value) for one, value in self._strangers.items())
            mine = self._peers[self._strangers[new][0]]
            del mine[old]
            mine[new] = None
            held = self._held.get(self._strangers[new][0], {})
            if old in held:
                held[new] = held.pop(old)

    def expired(self, now: float) -> list[T]:
        """Remove and return the strangers whose deadline has passed."""
        ended: list[T] = []
        if self._limits.patience is None:
            return ended
        for kind in (self._strangers, self._answered):
            while kind:
                connection, (_, since) = next(iter(kind.items()))
                if now < since + self._limits.patience:
                    break
                self.closed(connection)
                ended.append(connection)
        return ended

    def shed(self) -> list[T]:
        """Remove and return half of the strangers: the answered ones, then the oldest."""
        ended = [*self._answered, *self._strangers][: (self.strangers + 1) // 2]
        for connection in ended:
            self.closed(connection)
        return ended

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a stranger."""
        if self._limits.patience is None:
            return None
        since = (next(iter(kind.values()))[1] for kind in (self._strangers, self._answered) if kind)
        return min((one + self._limits.patience for one in since), default=None)

    def _forget_stranger(self, connection: T) -> bool:
        known = self._strangers.get(connection)
        if known is not None:
            self._forget_place(connection, known[0])
        else:
            known = self._answered.pop(connection, None)
        if known is None:
            return False
        self._hold(connection, known[0], 0)
        return True

    def _forget_place(self, connection: T, peer: str) -> None:
        del self._strangers[connection]
        mine = self._peers[peer]
        del mine[connection]
        if not mine:
            del self._peers[peer]


@functools.lru_cache(maxsize=1024)
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
