"""What a supervisor sees at one moment."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rallypoint.wire.status import JobStatus

__all__ = ["CreateError", "NodeSeen", "NodeState", "Observation"]


class NodeState(str, enum.Enum):
    """The life of a node (or of the coordinator's process), in the words that every backend can tell."""

    STARTING = "starting"  #: exists, nothing runs in it yet
    RUNNING = "running"
    ENDING = "ending"  #: asked to end, not gone
    SUCCEEDED = "succeeded"  #: ended with 0
    FAILED = "failed"  #: ended with another code, or by a signal
    LOST = "lost"  #: gone without a trace of how it ended; never success


@dataclass(frozen=True, kw_only=True)
class NodeSeen:
    """One node, or the coordinator, as the backend sees it.

    Attributes:
        attempt: the attempt that it belongs to.
        node: slot of the job; -1 for the coordinator.
        incarnation: how often the slot was filled, from 1; for the coordinator its term.
        present: it still holds processes or objects; false once nothing but its logs is left.
        exit_code: 128 + signal where a signal ended it; None while it lives or when nobody saw its end.
        reason: what is known of its end, for people; `log_tail` its last words.
    """

    attempt: int
    node: int
    incarnation: int
    state: NodeState
    present: bool
    host: str = ""
    exit_code: int | None = None
    reason: str = ""
    log_tail: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """It will never run again."""
        return self.state in (NodeState.SUCCEEDED, NodeState.FAILED, NodeState.LOST)


@dataclass(frozen=True, kw_only=True)
class CreateError:
    """A node or coordinator (`node` -1) could not be created; `fatal` when trying again cannot help."""

    attempt: int
    node: int
    reason: str
    fatal: bool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that was seen of a job: its nodes and coordinators of every attempt, and the coordinator's last word.

    `status` must be read after `nodes`: an agent ends only once its job's verdict is durable, so a node that is seen to have
    ended well is never seen without the verdict. `create_errors` are those of the turn before.
    """

    nodes: tuple[NodeSeen, ...] = ()
    coordinators: tuple[NodeSeen, ...] = ()
    status: JobStatus | None = None
    create_errors: tuple[CreateError, ...] = ()

    @property
    def present(self) -> bool:
        """Something of some attempt still holds resources."""
        return any(seen.present for seen in (*self.nodes, *self.coordinators))
