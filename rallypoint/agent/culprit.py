"""Of several workers that ended badly, which one broke first. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from rallypoint.wire.incident import Culprit

__all__ = ["TAILS", "culprit_first", "is_collateral", "with_few_tails"]

#: Failures of one node whose log tails are told. A tail may be tens of KiB as JSON, and a message has an end; the logs stay.
TAILS = 4

#: What a healthy rank says when a peer vanished in mid-collective: gloo, NCCL, the store, and the operating system.
_COLLATERAL = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|DistBackendError|DistNetworkError|gloo/transport"
    r"|NCCL (error|communicator was aborted)|ncclRemoteError|recvBytes failed|sendBytes failed|socket (timeout|closed)",
    re.IGNORECASE,
)


def is_collateral(failure: Culprit) -> bool:
    """Return whether a failure looks like the consequence of another rank's end."""
    return failure.signal is None and bool(_COLLATERAL.search(failure.error))


def culprit_first(failures: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """Return the failures, the likeliest cause first.

    A worker that a signal ended did not choose to; one whose error speaks of a lost peer followed another; else the earlier
    one counts. Times are only compared between workers of one node, which share a clock: the sort is stable across nodes.
    """
    return tuple(sorted(failures, key=lambda f: (f.signal is None, is_collateral(f), f.at)))


def with_few_tails(failures: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """Return all failures in the same order, only the first `TAILS` with their log tails."""
    return (*failures[:TAILS], *(dataclasses.replace(failure, log_tail=()) for failure in failures[TAILS:]))
