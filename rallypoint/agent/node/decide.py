"""The node agent's state machine: what to do with an answer, an end of a worker, a signal. Pure.

Theory of operation
===================

An agent is in one of seven phases::

    JOINING ──assignment──► RUNNING ──all ended with 0──► DONE
       ▲                       │ worker failed               │
       │                    FAILING            regroup       │
       └──no process left──────┴──── REGROUPING ◄────────────┘

    any ──verdict, refusal, signal, lost contact──► ENDING ──no process left──► ENDED

Each phase is reported as one `AgentState` (`STATES`); ENDING is reported only by an agent that leaves by its own will: in every
other case there is nobody left whom it concerns. An agent stays FAILING or REGROUPING until the last process of its
workers' groups is gone, and only then asks for a place in the next round: so when a round closes, nobody of the last is left.

What failed is told with every report until the next assignment, also while the agent waits: the first report of it may be lost.

Where the job has a failover extension, that is asked as soon as workers ended badly, and nothing is told before it has answered
(or could not): until then the agent still seems to run, while it stops what is left.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.agent.culprit import culprit_first
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failover
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import SENT_AWAY, AgentState, Assignment, Refusal, Regroup, Reply, Stop
from rallypoint.wire.status import Outcome, Verdict

__all__ = [
    "STATES",
    "Action",
    "Advised",
    "Answered",
    "AskExtension",
    "End",
    "Event",
    "Node",
    "Phase",
    "StartWorkers",
    "StopWorkers",
    "StoreLost",
    "Told",
    "WorkersEnded",
    "WorkersGone",
    "step",
]


class Phase(enum.Enum):
    """Where the agent stands; see the theory above."""

    JOINING = "joining"
    RUNNING = "running"
    DONE = "done"
    FAILING = "failing"
    REGROUPING = "regrouping"
    ENDING = "ending"
    ENDED = "ended"


#: How an agent ends by a verdict that is not about the job.
_FAILED: Mapping[str, Exit] = {SENT_AWAY: Exit.ELSEWHERE}

#: How each phase is reported. An agent that regroups still has workers of its round.
STATES: Mapping[Phase, AgentState] = {
    Phase.JOINING: AgentState.WAITING,
    Phase.RUNNING: AgentState.RUNNING,
    Phase.DONE: AgentState.DONE,
    Phase.FAILING: AgentState.FAILED,
    Phase.REGROUPING: AgentState.RUNNING,
    Phase.ENDING: AgentState.LEAVING,
    Phase.ENDED: AgentState.LEAVING,
}


@dataclass(frozen=True, kw_only=True)
class Node:
    """All that an agent knows between two events.

    Attributes:
        local_world_size: number of workers that it starts.
        fence: the highest heard; its round is that of the last assignment.
        assignment: the last one.
        alive: local ranks whose process has not ended.
        extension: the job has a failover extension that must be asked.
        asking: it has not answered yet.
        failures, reason: what ended the last round here, until the next assignment; `failover` and `note` what the extension
            said of it.
        leaving: it ends by its own will and tells so.
        verdict, code: how it will end, once it is ENDING.
    """

    local_world_size: int
    phase: Phase = Phase.JOINING
    fence: Fence = Fence()
    assignment: Assignment | None = None
    alive: frozenset[int] = frozenset()
    extension: bool = False
    asking: bool = False
    failures: tuple[Culprit, ...] = ()
    failover: Failover | None = None
    note: str = ""
    reason: str = ""
    leaving: bool = False
    verdict: Verdict | None = None
    code: int = Exit.OK

    @property
    def round(self) -> int:
        """The round of the last assignment; 0 before the first."""
        return 0 if self.assignment is None else self.assignment.fence.round

    @property
    def state(self) -> AgentState:
        """What the coordinator is told."""
        return AgentState.RUNNING if self.silent else STATES[self.phase]

    @property
    def told_failures(self) -> tuple[Culprit, ...]:
        """The failures that the coordinator is told."""
        return () if self.silent else self.failures

    @property
    def silent(self) -> bool:
        """It keeps a failure to itself until the extension has answered."""
        return self.asking and self.phase in (Phase.FAILING, Phase.JOINING)


# --- What happens to it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The coordinator answered."""

    reply: Reply


@dataclass(frozen=True, kw_only=True)
class WorkersEnded:
    """Worker processes ended by themselves: `ranks` are local, `failures` those among them that ended badly."""

    ranks: frozenset[int]
    failures: tuple[Culprit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkersGone:
    """No process of the round is left."""


@dataclass(frozen=True, kw_only=True)
class StoreLost:
    """The store of the running round, which was served here, is gone."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Advised:
    """The failover extension answered about a round, or could not (`note`)."""

    round: int
    failover: Failover
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Told:
    """It must end with exit code `code`: a signal, lost contact, a full disk. `leaving` tells the coordinator."""

    code: int
    reason: str
    leaving: bool


Event = Answered | WorkersEnded | WorkersGone | StoreLost | Advised | Told


# --- What follows from it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StartWorkers:
    """Start the workers of a round."""

    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class StopWorkers:
    """Stop what is left of the workers; `WorkersGone` follows, at once where nothing is left."""


@dataclass(frozen=True, kw_only=True)
class AskExtension:
    """Ask the failover extension about the failures of a round; `Advised` follows."""

    round: int
    failures: tuple[Culprit, ...]


@dataclass(frozen=True, kw_only=True)
class End:
    """The agent ends with `code`."""

    code: int


Action = StartWorkers | StopWorkers | AskExtension | End
_Step = tuple[Node, tuple[Action, ...]]


def step(node: Node, event: Event) -> _Step:
    """Return the agent after `event`, and what must be done now, in order."""
    if node.phase is Phase.ENDED:
        return node, ()
    if isinstance(event, Answered):
        return _answered(node, event.reply)
    if isinstance(event, WorkersEnded):
        return _workers_ended(node, event)
    if isinstance(event, StoreLost):
        return _store_lost(node, event)
    if isinstance(event, Advised):
        return _advised(node, event), ()
    if isinstance(event, Told):
        return _end(node, code=event.code, reason=event.reason, leaving=event.leaving)
    return _workers_gone(node)


def _answered(node: Node, reply: Reply) -> _Step:
    node = dataclasses.replace(node, fence=max(node.fence, reply.fence.with_round(node.fence.round)))
    if isinstance(reply, Stop):
        return _judged(node, reply.verdict)
    if isinstance(reply, Refusal):
        return _end(node, code=Exit.STALE, reason=reply.reason) if reply.stale else (node, ())
    if isinstance(reply, Regroup):
        return _regroup(node, reply.reason)
    if isinstance(reply, Assignment):
        return _assigned(node, reply)
    return node, ()


def _judged(node: Node, verdict: Verdict) -> _Step:
    if node.verdict is not None:  # the first word is the last
        return node, ()
    code = int(Exit.OK if verdict.outcome is Outcome.SUCCEEDED else _FAILED.get(verdict.reason, Exit.JOB_FAILED))
    node, actions = _end(node, code=code, reason=verdict.message)
    # It may have been ending already: a verdict says more than what it would have ended with.
    return dataclasses.replace(node, verdict=verdict, code=code, reason=verdict.message, leaving=False), actions


def _assigned(node: Node, assignment: Assignment) -> _Step:
    if assignment.fence.round <= node.round:
        return node, ()  # said again: the answer to a report that crossed with it
    if node.phase is not Phase.JOINING:
        return _regroup(node, f"the world went on to round {assignment.fence.round}")
    node = dataclasses.replace(
        node,
        phase=Phase.RUNNING,
        fence=max(node.fence, assignment.fence),
        assignment=assignment,
        alive=frozenset(range(node.local_world_size)),
        asking=False,
        failures=(),
        failover=None,
        note="",
        reason="",
    )
    return node, (StartWorkers(assignment=assignment),)


def _regroup(node: Node, reason: str) -> _Step:
    if node.phase not in (Phase.RUNNING, Phase.DONE):
        return node, ()
    return dataclasses.replace(node, phase=Phase.REGROUPING, reason=reason), (StopWorkers(),)


def _workers_ended(node: Node, event: WorkersEnded) -> _Step:
    node = dataclasses.replace(node, alive=node.alive - event.ranks)
    if node.phase is Phase.FAILING:
        return dataclasses.replace(node, failures=culprit_first((*node.failures, *event.failures))), ()
    if node.phase is not Phase.RUNNING:
        return node, ()
    if event.failures:
        failures = culprit_first(event.failures)
        asked = (AskExtension(round=node.round, failures=failures),) if node.extension else ()
        node = dataclasses.replace(node, phase=Phase.FAILING, failures=failures, asking=node.extension)
        return node, (*asked, StopWorkers())
    return (node if node.alive else dataclasses.replace(node, phase=Phase.DONE)), ()


def _advised(node: Node, event: Advised) -> Node:
    if not node.asking or event.round != node.round:
        return node
    return dataclasses.replace(node, asking=False, failover=event.failover, note=event.note)


def _store_lost(node: Node, event: StoreLost) -> _Step:
    if node.phase is not Phase.RUNNING:
        return node, ()
    return dataclasses.replace(node, phase=Phase.FAILING, reason=event.reason), (StopWorkers(),)


def _workers_gone(node: Node) -> _Step:
    node = dataclasses.replace(node, alive=frozenset())
    if node.phase in (Phase.FAILING, Phase.REGROUPING):
        return dataclasses.replace(node, phase=Phase.JOINING), ()
    if node.phase is Phase.ENDING:
        return dataclasses.replace(node, phase=Phase.ENDED), (End(code=node.code),)
    return node, ()


def _end(node: Node, *, code: int, reason: str, leaving: bool = False) -> _Step:
    if node.phase is Phase.ENDING:
        return node, ()
    node = dataclasses.replace(node, phase=Phase.ENDING, code=int(code), reason=reason, leaving=leaving)
    return node, (StopWorkers(),)
