"""Limit on open files of this process, and the share of it for connections.

A process without free file descriptors cannot accept a connection, start a worker or write a status. So a process that serves
a port raises its soft limit at start, and connections leave a reserve. Child processes get the original limit: a program that
uses `select()` fails with descriptors above 1,023.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Shares", "as_started", "raise_limit", "shares"]

#: Requested soft limit, if the hard limit allows it: eight descriptors for each of 16,000 agents.
_WANTED = 1 << 17

#: Minimum and maximum reserve of file descriptors, for workers' files, pipes and the status.
_RESERVE_LEAST, _RESERVE_MOST = 64, 1024

_started: list[tuple[int, int]] = []


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Connection limits of a process.

    Attributes:
        requests: HTTP connections, with and without the job's token.
        strangers: HTTP connections that have not sent the token.
        grpc: descriptors for gRPC connections; a connection with TLS uses one.
        forwarded: connections forwarded to a store; each uses two descriptors.
    """

    requests: int
    strangers: int
    grpc: int
    forwarded: int

    @property
    def relayed(self) -> int:
        """Maximum number of authenticated gRPC connections without TLS.

        Each uses three descriptors. The other two fifths are for unauthenticated connections.
        """
        return self.grpc // 5


def raise_limit() -> None:
    """Raise the soft limit on open files as far as the hard limit allows. Ignored the second time."""
    if _started:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _started.append((soft, hard))
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def as_started() -> Callable[[], None]:
    """Return a `preexec_fn` that restores the original limit of this process in a child."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _started[0] if _started else limits

    def prepare() -> None:
        if before != limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return prepare


def shares(limit: int | None = None, *, grpc: bool = False, forwards: bool = False) -> Shares:
    """Divide the file descriptors of a process with this soft limit (default: this process).

    `grpc` and `forwards`: whether the process serves gRPC, and forwards connections to a store.
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit > _WANTED:
        limit = _WANTED
    total = limit - min(max(limit // 4, _RESERVE_LEAST), _RESERVE_MOST)
    forwarded = total // 8 if forwards else 0
    total -= 2 * forwarded
    by_grpc = total * 2 // 3 if grpc else 0
    requests = max(total - by_grpc, 8)
    strangers = max(min(requests // 2, 8192), 4)
    return Shares(requests=requests, strangers=strangers, grpc=by_grpc, forwarded=forwarded)
