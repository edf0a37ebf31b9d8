"""Snapshots in plan, reports and replies.

A last checkpoint has three phases. In each, the coordinator sends a `SaveRequest` to all agents concerned, and the next phase
begins when all of them have answered: which parts of snapshots a node has, writing some of the parts, and (one agent only)
completing the checkpoint. So the manifest appears after every part is written, and only the coordinator decides when.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.fence import Fence
from rallypoint.wire.plan import ElasticMode
from rallypoint.wire.sections import Section

__all__ = [
    "AssignmentSection",
    "HeldParts",
    "PlanSection",
    "ReplySection",
    "ReportSection",
    "SavePhase",
    "SaveRequest",
    "SaveResult",
]


class SavePhase(str, enum.Enum):
    """Phase of a last checkpoint."""

    TELL = "tell"  #: report the parts of snapshots of this node
    WRITE = "write"  #: write the parts of some ranks
    COMMIT = "commit"  #: verify that all are written, and complete the checkpoint


@dataclass(frozen=True, kw_only=True)
class HeldParts:
    """The parts of one snapshot on a node; `whole`: each of them is the complete state."""

    limits: ClassVar = {"step": WHOLE}

    fence: Fence
    step: int
    world_size: int
    ranks: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """A request of last checkpoint `number`; `fence` and `step` name the snapshot, `ranks` the parts that this agent writes."""

    limits: ClassVar = {"step": WHOLE}

    number: int
    phase: SavePhase
    fence: Fence = Fence()
    step: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """The answer to a `SaveRequest`: the parts of this node, or the name of the checkpoint; or the `error`."""

    number: int
    phase: SavePhase
    kept: tuple[HeldParts, ...] = ()
    checkpoint: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="snapshots"):
    """Settings.

    Attributes:
        save_at_breakpoint: the agents store the last snapshot in memory when a worker dies.
        elastic_mode: what happens between two rounds.
        replica_every: snapshots of steps that are a multiple of it are also kept on another node; 0 is off.
        replica_limit: limit in bytes for copies of other nodes' snapshots on a node.
    """

    limits: ClassVar = {"replica_every": WHOLE, "replica_limit": WHOLE}

    save_at_breakpoint: bool = False
    elastic_mode: ElasticMode = ElasticMode.BASE
    replica_every: int = 0
    replica_limit: int = 0


@dataclass(frozen=True, kw_only=True)
class ReportSection(Section, record="AgentReport", capability="snapshots"):
    """Snapshots of a node.

    Attributes:
        replicas: `host:port` of the server for other nodes' snapshots; "" without one.
        dumps: the node has a snapshot, and knows where a last checkpoint is stored.
        dump: its last answer to a `SaveRequest`.
    """

    replicas: str = ""
    dumps: bool = False
    dump: SaveResult | None = None


@dataclass(frozen=True, kw_only=True)
class AssignmentSection(Section, record="Assignment", capability="snapshots"):
    """`host:port` of the next node's server for snapshots of this node; "" without one."""

    replicas: str = ""


@dataclass(frozen=True, kw_only=True)
class ReplySection(Section, record="Continue", capability="snapshots"):
    """A request of a last checkpoint, repeated until a report has the answer."""

    dump: SaveRequest | None = None
