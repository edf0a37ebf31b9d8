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
Of several that end at nearly the same time the one that broke the round may be heard of last, when its peers, or other nodes,
have told of the connections that they lost; it is told then.

Workers that live on
====================

A worker that said it can (`Announced`) is not stopped when its round is over: it is told to leave the broken world, and lives
on once it has (`Freed`). Until then the agent does not wait for a place, as with workers that are being stopped. Who has not
left by the deadline (`LeaveOverdue`), or dies, is one of those that are replaced. The next assignment says whether anybody
lives on in the world; where it says nobody does (its shape changed, and they cannot follow), the kept are stopped first.

A worker whose step raised (`StepFailed`) is a failure like one that ended, but it lives, and has left its world already. Where
that is of no use (`replace`) it is stopped.

Where the job has a failover extension, that is asked as soon as workers ended badly, and nothing is told before it has answered
(or could not): until then the agent still seems to run, while it stops what is left.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.agent.culprit import culprit_first
from rallypoint.agent.node.events import (
    Action,
    Advised,
    Announced,
    Answered,
    AskExtension,
    End,
    Event,
    Freed,
    LeaveOverdue,
    LeaveWorld,
    StartWorkers,
    StepFailed,
    StopWorkers,
    StoreLost,
    Told,
    WorkersEnded,
    WorkersGone,
)
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failover
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import SENT_AWAY, AgentState, Assignment, Refusal, Regroup, Reply, Stop
from rallypoint.wire.status import Outcome, Verdict

__all__ = [
    "STATES",
    "Node",
    "Phase",
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
        keeps: the job allows that workers live on.
        able: local ranks that said they can; `resizable` those that can follow into a world of another size, too.
        kept: local ranks that live on into the next round; `owing` those among them that have not left their world yet.
        stopping: the others are being stopped.
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
    keeps: bool = False
    able: frozenset[int] = frozenset()
    resizable: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    owing: frozenset[int] = frozenset()
    stopping: bool = False
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
        """The answer for the coordinator."""
        return AgentState.RUNNING if self.silent else STATES[self.phase]

    @property
    def told_failures(self) -> tuple[Culprit, ...]:
        """The failures that the coordinator is told."""
        return () if self.silent else self.failures

    @property
    def keepable(self) -> frozenset[int]:
        """The local ranks that live on where the round is over now, or that do because it is."""
        if self.phase is Phase.RUNNING:
            return self.able & self.alive if self.keeps else frozenset()
        return self.kept

    @property
    def silent(self) -> bool:
        """It keeps a failure to itself until the extension has answered."""
        return self.asking and self.phase in (Phase.FAILING, Phase.JOINING)


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
    if isinstance(event, WorkersGone):
        return _workers_gone(node, event)
    return _worker_said(node, event)


def _answered(node: Node, reply: Reply) -> _Step:
    fence = max(node.fence, reply.fence.with_round(node.fence.round))
    if fence != node.fence:
        node = dataclasses.replace(node, fence=fence)
    if isinstance(reply, Stop):
        return _judged(node, reply.verdict)
    if isinstance(reply, Refusal):
        return _end(node, code=Exit.STALE, reason=reply.reason) if reply.stale else (node, ())
    if isinstance(reply, Regroup):
        return _regroup(node, reply.reason, keep=reply.keep, dead=reply.dead)
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
        return _regroup(node, f"the other nodes continue in round {assignment.fence.round}", dead=True)
    if node.kept and not assignment.kept:
        # Nobody lives on in this world. It is asked for again when they are gone, and given again.
        return _stop(dataclasses.replace(node, phase=Phase.REGROUPING, kept=frozenset()), at_once=True)
    node = dataclasses.replace(
        node,
        phase=Phase.RUNNING,
        fence=max(node.fence, assignment.fence),
        assignment=assignment,
        alive=frozenset(range(node.local_world_size)),
        able=node.kept,
        resizable=node.resizable & node.kept,
        kept=frozenset(),
        asking=False,
        failures=(),
        failover=None,
        note="",
        reason="",
    )
    return node, (StartWorkers(assignment=assignment, kept=node.able),)


def _regroup(node: Node, reason: str, *, keep: bool = True, dead: bool = False) -> _Step:
    if node.kept and not keep and node.phase in (Phase.FAILING, Phase.REGROUPING, Phase.JOINING):
        phase = Phase.REGROUPING if node.phase is Phase.JOINING else node.phase
        return _stop(dataclasses.replace(node, phase=phase, kept=frozenset(), owing=frozenset()))
    if node.phase not in (Phase.RUNNING, Phase.DONE):
        return node, ()
    if not keep:
        node = dataclasses.replace(node, able=frozenset())
    return _break(node, Phase.REGROUPING, reason, dead=dead)


def _break(node: Node, phase: Phase, reason: str, *, dead: bool, left: frozenset[int] = frozenset(), told: str = "") -> _Step:
    """End the round here: whoever can live on is told to leave it (but for those that `left`), the others are stopped.

    In a `dead` round they are blocked in a collective that never ends: they get no time to end by themselves.
    """
    kept = node.keepable
    owing = kept - left
    node = dataclasses.replace(node, phase=phase, reason=reason, kept=kept, owing=owing)
    leave = (LeaveWorld(round=node.round, ranks=owing, reason=told or reason),) if owing else ()
    node, stop = _stop(node, at_once=dead)
    return node, (*leave, *stop)


def _stop(node: Node, *, at_once: bool = False) -> _Step:
    return dataclasses.replace(node, stopping=True), (StopWorkers(spare=node.kept, at_once=at_once),)


def _workers_ended(node: Node, event: WorkersEnded) -> _Step:
    lost = node.kept & event.ranks
    node = dataclasses.replace(
        node, alive=node.alive - event.ranks, able=node.able - event.ranks, kept=node.kept - lost, owing=node.owing - lost
    )
    if node.phase is Phase.RUNNING and event.failures:
        return _fail(node, event.failures)
    if node.phase is Phase.RUNNING:
        return (node if node.alive else dataclasses.replace(node, phase=Phase.DONE)), ()
    if node.phase in (Phase.FAILING, Phase.REGROUPING, Phase.JOINING):
        # It ended by itself (who is stopped does not fail), and may be who broke the round, though others were heard first.
        node = dataclasses.replace(node, failures=culprit_first((*node.failures, *event.failures)))
    if not lost:
        return node, ()
    # What it leaves behind is stopped like the rest, and nobody waits for a place before that is done.
    phase = Phase.REGROUPING if node.phase is Phase.JOINING else node.phase
    return _stop(dataclasses.replace(node, phase=phase), at_once=True)


def _fail(node: Node, failures: tuple[Culprit, ...], *, left: frozenset[int] = frozenset()) -> _Step:
    failures = culprit_first(failures)
    asked = (AskExtension(round=node.round, failures=failures),) if node.extension else ()
    told = failures[0].error or "a worker of this node failed"
    node = dataclasses.replace(node, failures=failures, asking=node.extension)
    node, actions = _break(node, Phase.FAILING, node.reason, dead=True, left=left, told=told)
    return node, (*asked, *actions)


def _worker_said(node: Node, event: Announced | Freed | StepFailed | LeaveOverdue) -> _Step:
    if event.round != node.round:
        return node, ()  # of a round that is over
    if isinstance(event, Announced):
        return _announced(node, event)
    if isinstance(event, StepFailed):
        return _step_failed(node, event)
    if isinstance(event, Freed):
        return _settled(dataclasses.replace(node, owing=node.owing - {event.local_rank})), ()
    if not node.owing:
        return node, ()
    return _stop(dataclasses.replace(node, kept=node.kept - node.owing, owing=frozenset()), at_once=True)


def _announced(node: Node, event: Announced) -> _Step:
    one = frozenset({event.local_rank})
    node = dataclasses.replace(
        node,
        able=node.able | one if event.able else node.able - one,
        resizable=node.resizable | one if event.able and event.resizable else node.resizable - one,
    )
    if event.able or not one <= node.kept:
        return node, ()
    # Nobody can tell it its place any more.
    phase = Phase.REGROUPING if node.phase is Phase.JOINING else node.phase
    return _stop(dataclasses.replace(node, phase=phase, kept=node.kept - one, owing=node.owing - one), at_once=True)


def _step_failed(node: Node, event: StepFailed) -> _Step:
    one = frozenset({event.failure.local_rank})
    if node.phase is Phase.RUNNING:
        node = dataclasses.replace(node, able=node.able - one) if event.replace else node
        return _fail(node, (event.failure,), left=one)
    if node.phase is Phase.FAILING and one <= node.kept:
        node = dataclasses.replace(node, failures=culprit_first((*node.failures, event.failure)))
    return _settled(dataclasses.replace(node, owing=node.owing - one)), ()


def _advised(node: Node, event: Advised) -> Node:
    if not node.asking or event.round != node.round:
        return node
    return dataclasses.replace(node, asking=False, failover=event.failover, note=event.note)


def _store_lost(node: Node, event: StoreLost) -> _Step:
    if node.phase is not Phase.RUNNING:
        return node, ()
    return _break(node, Phase.FAILING, event.reason, dead=True)


def _workers_gone(node: Node, event: WorkersGone) -> _Step:
    if event.spared != node.kept:
        return node, ()  # one of them died meanwhile, and what it left is being stopped
    node = dataclasses.replace(node, alive=node.alive & node.kept, stopping=False)
    if node.phase is Phase.ENDING:
        return dataclasses.replace(node, phase=Phase.ENDED), (End(code=node.code),)
    return _settled(node), ()


def _settled(node: Node) -> Node:
    """Return an agent that waits for a place, once everybody of its round has left it."""
    left = not node.stopping and not node.owing
    return dataclasses.replace(node, phase=Phase.JOINING) if left and node.phase in (Phase.FAILING, Phase.REGROUPING) else node


def _end(node: Node, *, code: int, reason: str, leaving: bool = False) -> _Step:
    if node.phase is Phase.ENDING:
        return node, ()
    node = dataclasses.replace(
        node, phase=Phase.ENDING, code=int(code), reason=reason, leaving=leaving, kept=frozenset(), owing=frozenset()
    )
    return _stop(node)
