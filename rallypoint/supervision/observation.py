"""What a supervisor sees at one moment."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rallypoint.supervision.record import Condition, ConditionType, Phase
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.status import JobStatus

__all__ = ["Components", "CreateError", "NodeSeen", "NodeState", "Observation", "Told", "how_it_ended"]


class NodeState(str, enum.Enum):
    """The life of a node (or of the coordinator's process), in the words that every backend can tell."""

    STARTING = "starting"  #: exists, nothing runs in it yet (a pod's Pending)
    RUNNING = "running"
    ENDING = "ending"  #: asked to end, not gone
    SUCCEEDED = "succeeded"  #: ended with 0
    FAILED = "failed"  #: ended with another code, or by a signal
    UNKNOWN = "unknown"  #: its host does not say; counted nowhere
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
        exit_codes: of all its containers that ended; where it is empty, `exit_code` alone counts.
        kind: what its end was, where the backend knows (evicted, preempted, out of memory, deleted from outside).
        deleting: it was asked to end, whatever its state says.
        gated: it waits for quota: no clock runs for it.
        unschedulable: no host has room for it now.
        flagged: its host was flagged as bad for what it uses, and why; "" is a good host.
        outdated: why it should be created anew before it has a host; "" for no reason.
        group: of the machines that its nodes leave together, the one that its machine belongs to; "" is none, or not known.
        unseen: it is lost by evidence, and may still run: nobody saw its end.
        unneeded: it has servers that were not yet asked to end, and all drivers of the job have succeeded.
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
    exit_codes: tuple[int, ...] = ()
    kind: FaultKind | None = None
    deleting: bool = False
    gated: bool = False
    unschedulable: bool = False
    flagged: str = ""
    outdated: str = ""
    group: str = ""
    unseen: bool = False
    unneeded: bool = False

    @property
    def ended(self) -> bool:
        """It will never run again."""
        return self.state in (NodeState.SUCCEEDED, NodeState.FAILED, NodeState.LOST)


@dataclass(frozen=True, kw_only=True)
class CreateError:
    """A node or coordinator (`node` -1) could not be created; `fatal` when trying again cannot help.

    `waits`: only room is missing, a quota's say: it is tried again, and no clock runs for it.
    """

    attempt: int
    node: int
    reason: str
    fatal: bool
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Components:
    """The objects that stand for the job as a whole.

    Where Rallypoint makes the pods itself that is one object, the job's own ConfigMap or folder. `failed` counts those whose
    own controller calls them failed, `deleting` those that are still there and asked to go: they are not `deployed` any more.
    """

    expected: int = 1
    deployed: int = 1
    failed: int = 0
    deleting: int = 0


@dataclass(frozen=True, kw_only=True)
class Told:
    """What another controller says of the job, which decides about it in our place (an AppWrapper's).

    Attributes:
        phase, conditions: its own words; `at` of a condition is its time, in seconds since the epoch by its clock.
        messages: what it says beside the reason of a condition.
        retries: resets so far that it has counted.
        first_attempt: number of the attempt for which its object was made; those before were of an object before.
        suspended: somebody, or a queue, has suspended it; `by_us`: we have.
        deleting: its object was asked to go.
    """

    phase: Phase
    conditions: tuple[Condition, ...] = ()
    messages: tuple[tuple[ConditionType, str], ...] = ()
    retries: int = 0
    first_attempt: int = 1
    suspended: bool = False
    by_us: bool = False
    deleting: bool = False

    def find(self, kind: ConditionType) -> Condition | None:
        """Return a condition, or None when it was never set."""
        return next((c for c in self.conditions if c.type is kind), None)

    def message(self, kind: ConditionType) -> str:
        """Return what is said beside a condition's reason."""
        return dict(self.messages).get(kind, "")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that was seen of a job: its nodes and coordinators of every attempt, and the coordinator's last word.

    `status` must be read after `nodes`: an agent ends only once its job's verdict is durable, so a node that is seen to have
    ended well is never seen without the verdict. `create_errors` are those of the turn before. `suspend`: a queue took the
    job's quota away (the wish of a person is in the record). `told`: what another controller says, where
    one decides about the job in our place; None where its object does not exist. `controller`: the current condition that
    another controller (AppWrapper's, the training operator) reports of the job's object, for people.
    """

    nodes: tuple[NodeSeen, ...] = ()
    coordinators: tuple[NodeSeen, ...] = ()
    status: JobStatus | None = None
    create_errors: tuple[CreateError, ...] = ()
    components: Components = Components()
    suspend: bool = False
    told: Told | None = None
    controller: str = ""

    @property
    def present(self) -> bool:
        """Something of some attempt still holds resources."""
        return any(seen.present for seen in (*self.nodes, *self.coordinators))


def how_it_ended(seen: NodeSeen) -> str:
    """Return in words how a node ended."""
    how = "was lost" if seen.exit_code is None else f"exited with code {seen.exit_code}"
    return f"{how}: {seen.reason}" if seen.reason else how
