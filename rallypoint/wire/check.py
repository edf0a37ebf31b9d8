"""The node check as it is spoken: what an agent is asked to try, what it found, and what is told of all nodes together."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE

__all__ = [
    "MATRIX_VERSION",
    "AllNodes",
    "CheckReport",
    "CheckState",
    "CheckTask",
    "Link",
    "NodeCheck",
    "NodeFound",
    "NodeVerdict",
    "ProbeState",
    "bandwidth_text",
    "measured",
]

#: Of the form in which a check's result is handed to other programs.
MATRIX_VERSION = 1


class ProbeState(str, enum.Enum):
    """How far an agent's probe is."""

    IDLE = "idle"  #: nothing was asked yet
    RUNNING = "running"  #: it was started
    OK = "ok"  #: it has measured everything
    FAILED = "failed"  #: it ended badly, or not in time


class NodeVerdict(str, enum.Enum):
    """What the check says of a node."""

    GOOD = "good"  #: it worked with at least one other node, and as fast as others do
    STRAGGLER = "straggler"  #: it works, and takes more than twice the median
    FAULT = "fault"  #: it fails by itself, or together with nodes that work with others
    UNKNOWN = "unknown"  #: it fails with another node, and nothing says which of the two is to blame


class CheckState(str, enum.Enum):
    """How far the check of all nodes is."""

    RUNNING = "running"
    PASSED = "passed"  #: what is left of the nodes may train
    FAILED = "failed"  #: no two nodes work together: not a node is at fault but what they have in common


@dataclass(frozen=True, kw_only=True)
class CheckTask:
    """What an agent is asked to try: to be ranks `first_rank` and following of a small world of `world_size`.

    Attributes:
        term, number: name it; a new coordinator counts anew.
        store: `host:port` at which the first node of the group serves the group's store.
        group_rank: of this node within the group; 0 serves the store.
        limit: seconds until the probe is ended and has failed.
        whole: all nodes at once, with more bytes: for what they can do together, and not for who is at fault.
    """

    term: int
    number: int
    store: str
    group_rank: int
    first_rank: int
    world_size: int
    limit: float
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What an agent's probe of the task `term`, `number` found.

    Attributes:
        store: `host:port` at which this agent can serve the store of a group.
        own: the failure was this node's own, before it met any other.
        error: why it failed, in one line.
        compute: seconds of a fixed piece of arithmetic on the slowest of the node's devices.
        transfer: seconds of one all-gather, and `moved` the bytes that each rank then has.
        latency: seconds of an all-reduce of one number.
    """

    limits: ClassVar = {"moved": WHOLE}

    store: str
    term: int = 0
    number: int = 0
    state: ProbeState = ProbeState.IDLE
    own: bool = False
    error: str = ""
    compute: float = 0.0
    transfer: float = 0.0
    moved: int = 0
    latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NodeFound:
    """What was found of one node; `compute` and `transfer` are its best, in seconds, 0.0 where it measured none."""

    node: int
    incarnation: int
    host: str
    verdict: NodeVerdict
    compute: float = 0.0
    transfer: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two nodes that were paired: bytes per second in one direction and seconds there and back; 0.0 where they failed."""

    nodes: tuple[int, ...]
    bandwidth: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AllNodes:
    """An all-gather of all good nodes at once (level 2).

    `algbw` is bytes of the result per second, `busbw` what of them has passed each rank's link, as nccl-tests count.
    `error` says why there are no figures.
    """

    limits: ClassVar = {"moved": WHOLE}

    nodes: int
    ranks: int
    moved: int = 0
    seconds: float = 0.0
    latency: float = 0.0
    algbw: float = 0.0
    busbw: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """A check of all nodes, running or over. Times are seconds since the epoch, coordinator's clock.

    Attributes:
        number: of the check within the attempt's coordinator, from 1.
        level: 1 pairs, 2 and then all nodes at once.
        reason: why it was made.
        rounds: so many rounds of groups were played.
        nodes: the bad ones first; at most 96. `links` the slowest first; at most 160.
        count: nodes that took part; of those and of the links, `left_out` are not told one by one.
        whole: the run of all nodes, None where there was none.
    """

    number: int
    level: int
    state: CheckState
    reason: str
    started_at: float
    finished_at: float | None = None
    rounds: int = 0
    count: int = 0
    nodes: tuple[NodeFound, ...] = ()
    links: tuple[Link, ...] = ()
    left_out: int = 0
    whole: AllNodes | None = None

    def named(self, verdict: NodeVerdict) -> tuple[NodeFound, ...]:
        """Return the nodes with this verdict."""
        return tuple(found for found in self.nodes if found.verdict is verdict)


#: From here on three figures would round to a thousand.
_NEXT_UNIT = 999.5


def bandwidth_text(value: float) -> str:
    """Return bytes per second as a person reads them."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < _NEXT_UNIT:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB/s" if value < _NEXT_UNIT else f"{value:.0f} GB/s"


def measured(found: NodeCheck) -> Iterator[str]:
    """Yield the bandwidths of a check in sentences: of the slowest and fastest pair, and of all nodes at once."""
    fastest = max(found.links, key=lambda link: link.bandwidth, default=None)
    slowest = min((link for link in found.links if link.bandwidth), key=lambda link: link.bandwidth, default=None)
    if fastest is not None and slowest is not None:
        names = " and ".join(map(str, slowest.nodes))
        yield f"bandwidth {bandwidth_text(slowest.bandwidth)} (nodes {names}) to {bandwidth_text(fastest.bandwidth)}"
    whole = found.whole
    if whole is None:
        return
    nodes = f"all {whole.nodes} nodes at once" if whole.nodes > 1 else "one node"
    if whole.error:
        yield f"{nodes} failed: {whole.error}"
    else:
        rates = f"algbw {bandwidth_text(whole.algbw)}, busbw {bandwidth_text(whole.busbw)}"
        yield f"{nodes}, {whole.ranks} ranks: {rates}, latency {1e6 * whole.latency:.0f} us"
