"""Close connections of servers without connection limits: grpcio's server and torch's stores.

The sockets are found among the file descriptors of this process; the kernel reports the received bytes and the silent time of
each socket. Each socket is inspected through a duplicate, so a descriptor that is closed and reused meanwhile is safe. A
connection is ended with `shutdown`: its server receives the end of the stream and closes the socket.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Accepted", "SweepLimits", "accepted", "descriptors_open", "plain_address", "sweep", "to_end"]

#: Offsets in the kernel's `struct tcp_info`: milliseconds since the last received data, and number of received bytes.
_LAST_RECEIVED, _BYTES_RECEIVED = 52, 128
_INFO_SIZE = 136

_FOLDER = "/proc/self/fd"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One accepted connection.

    Attributes:
        host, port: of the other side.
        received: bytes.
        silent: seconds since the last received data, or since the connection was accepted.
        fd: its file descriptor at the time of the inspection.
    """

    host: str
    port: int
    received: int
    silent: float
    fd: int


@dataclass(frozen=True, kw_only=True)
class SweepLimits:
    """Connection limits of a server.

    Attributes:
        most: connections.
        strangers: unauthenticated connections among these.
        patience: seconds after which a connection that has sent no data is closed.
        senders_stay: a connection that has sent data counts as authenticated.
    """

    most: int
    strangers: int
    patience: float
    senders_stay: bool = False

    @property
    def per_peer(self) -> int:
        """Unauthenticated connections of one address."""
        return max(self.strangers // 2, 1)


def to_end(
    seen: Sequence[Accepted],
    known: Collection[tuple[str, int]],
    limits: SweepLimits,
    rejected: Collection[tuple[str, int]] = (),
) -> list[Accepted]:
    """Return the connections to close; `known` are the remote addresses of authenticated connections.

    These are the `rejected` connections, and connections that have sent no data for `patience` seconds; then, from half of
    `most` on, unauthenticated connections above the limits: first those without data, of these the longest silent.
    """
    strangers = [one for one in seen if (one.host, one.port) not in known and not (limits.senders_stay and one.received)]
    ended: list[Accepted] = []
    left: list[Accepted] = []
    for one in strangers:
        silent = not one.received and one.silent >= limits.patience
        (ended if silent or (one.host, one.port) in rejected else left).append(one)
    if len(seen) - len(ended) <= limits.most // 2:
        return ended
    peers, count = Counter(one.host for one in left), len(left)
    for one in sorted(left, key=lambda one: (one.received > 0, -one.silent)):
        if count > limits.strangers or peers[one.host] > limits.per_peer:
            ended.append(one)
            peers[one.host] -= 1
            count -= 1
    return ended


def plain_address(host: str) -> str:
    """Return an address as it is written without a zone, and an IPv4 one as such."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def descriptors_open() -> int:
    """Return the number of open file descriptors, or -1 if the system does not provide it."""
    try:
        return len(os.listdir(_FOLDER))  # noqa: PTH208  a number of names, thousands of them
    except OSError:
        return -1


def accepted(port: int) -> list[Accepted]:
    """Return the accepted connections at a port of this process; none if the system does not provide them."""
    found = []
    try:
        names = os.listdir(_FOLDER)  # noqa: PTH208  numbers, thousands of them
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError, ValueError), _duplicate(int(name)) as sock:
            one = _seen(sock, port, int(name))
            if one is not None:
                found.append(one)
    return found


def sweep(
    port: int, known: Collection[tuple[str, int]], limits: SweepLimits, rejected: Collection[tuple[str, int]] = ()
) -> int:
    """Close the connections at a port that `to_end` selects; return their number."""
    ended = to_end(accepted(port), known, limits, rejected)
    for one in ended:
        with contextlib.suppress(OSError, ValueError), _duplicate(one.fd) as sock:
            still = _seen(sock, port, one.fd)
            if still is not None and (still.host, still.port) == (one.host, one.port):
                sock.shutdown(socket.SHUT_RDWR)
    return len(ended)


def _duplicate(fd: int) -> socket.socket:
    """Return a duplicate socket for a descriptor; raises `OSError` if the descriptor is not a socket."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise


def _seen(sock: socket.socket, port: int, fd: int) -> Accepted | None:
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if sock.getsockname()[1] != port:
        return None
    host, number = sock.getpeername()[:2]  # a listening socket has none, and raises
    host = plain_address(host)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    if len(info) < _INFO_SIZE:
        return None
    (silent,), (received,) = struct.unpack_from("=I", info, _LAST_RECEIVED), struct.unpack_from("=Q", info, _BYTES_RECEIVED)
    return Accepted(host=host, port=number, received=received, silent=silent / 1000, fd=fd)
