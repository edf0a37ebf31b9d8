"""Descriptors of this process: how many may be open, and how many of them connections may take.

A process that has none left cannot accept, start a worker or write a status. So a process that serves a port raises its soft
limit at start, and connections leave a reserve free. Children get the limit that the process was started with: a program that
uses `select()` breaks with numbers beyond 1,023.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Shares", "as_started", "raise_limit", "shares"]

#: The soft limit that is asked for, where the hard limit allows it: four connections for each of 16,000 agents.
_WANTED = 1 << 16

#: Descriptors that connections leave free, at the least and at the most: for workers' files, pipes and the status.
_RESERVE_LEAST, _RESERVE_MOST = 64, 1024

_started: list[tuple[int, int]] = []


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Connections that a process may have open.

    Attributes:
        requests: over HTTP, with the job's token or without.
        strangers: of these, such as have not shown the token.
        grpc: over gRPC.
        forwarded: to a store; each takes two descriptors.
    """

    requests: int
    strangers: int
    grpc: int
    forwarded: int


def raise_limit() -> None:
    """Raise the soft limit on open files as far as the hard limit allows. Does nothing the second time."""
    if _started:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _started.append((soft, hard))
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def as_started() -> Callable[[], None]:
    """Return a `preexec_fn` that gives a child the limit with which this process was started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _started[0] if _started else limits

    def prepare() -> None:
        if before != limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return prepare


def shares(limit: int | None = None, *, grpc: bool = False, forwards: bool = False) -> Shares:
    """Divide the descriptors of a process with this soft limit, by default its own.

    `grpc` and `forwards` say whether it serves gRPC and forwards connections to a store.
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
    return Shares(requests=requests, strangers=max(min(requests // 2, 8192), 4), grpc=by_grpc, forwarded=forwarded)
