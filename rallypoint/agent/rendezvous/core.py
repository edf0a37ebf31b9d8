"""The rendezvous: decides which agents form a round, when the round closes and when it ends. Pure; `now` is an argument.

Theory of operation
===================

Each report of an agent (`AgentReport`) contains the agent's complete state. The coordinator stores the last report of each
agent (`Peer`) and derives each reply from its own state (`answer`). A lost report or reply is sent again. A new coordinator
knows the complete state after one report of each agent.

The job is in one of four states. FORMING: agents wait for a round. RUNNING: a round is closed and its world trains. SUCCEEDED
and FAILED: the verdict exists, and every agent that sends a report is requested to stop.

A round closes when every live member of the last world has left that world (it may still be stopping its workers), and

- `max_nodes` nodes have joined, or
- at least `min_nodes` nodes have joined, and either this is not the first round or `last_call_timeout` has expired. After the
  first round all live nodes are already back; a node that returns later enlarges the world.

A capability may hold the next round, as the node check and pre-check operators do (`capabilities.holds_round`).

A world without any member of the last world starts only when the last world is known to have ended (`last_world.py`), because
an unreachable agent may still train.

A round ends when a worker fails, when a member is lost (its lease expired, or all its connections closed and it did not
reconnect within `RECONNECT_WITHIN`), when a member leaves, or when a waiting node would enlarge the world. All agents are then
requested to form a new round. A node that joins a running job prepares its workers first (`newcomers.py`).

An agent closes a connection only after it has sent a report over another connection. So when its last connection closes, its
process has ended or the network is interrupted. A live agent notices the interruption at the same time and reconnects within a
few milliseconds. If it needs longer, it counts as lost, and joins a new round.

The exit of a worker has a verdict (`faults.py`). After most verdicts the workers restart, which uses the process budget. After
some verdicts the worker's agent is requested to leave (`away`), which is a node fault, and the supervisor replaces the node.
Other verdicts end the job, without regard to budgets.

Optional capabilities (`capabilities.py`) are called with each report, at the start of each tick, and for each reply and status.
The rendezvous depends on no particular capability.

A rank whose peer is lost fails too, and its failure may be reported first. While a member does not answer, or if all reported
errors are errors of lost connections, the failure is stored as an echo. A lost node or the failure of another rank replaces the
echo. If neither is reported within `ECHO_GRACE` or before the next round closes, the echo itself is charged; the grace is
`ECHO_LIMIT` while a member has not reported since the echo, or has not ended its round. The round ends immediately in any case.

Deadlines are times of the coordinator's own clock; clocks of two machines are never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous import (
    capabilities,
    closing,
    faults,
    journal,
    last_checkpoint,
    last_world,
    missing,
    newcomers,
    picture,
    progress,
)
from rallypoint.agent.rendezvous.faults import ECHO_GRACE, ECHO_LIMIT, echoes_due
from rallypoint.agent.rendezvous.lookup import places, world_size
from rallypoint.agent.rendezvous.peers import (
    ClosedRound,
    CoordinatorStart,
    Peer,
    State,
    accept,
    holder,
    living,
    opened,
    outstanding,
    sealed,
    sent_away,
    stretch,
    with_peer,
)
from rallypoint.agent.rendezvous.profile import rules
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.supervision.budget import Course
from rallypoint.wire.messages import MESSAGES_VERSION, AgentReport, AgentState, Assignment, Refusal, Regroup, Reply, Stop
from rallypoint.wire.node_range import Size
from rallypoint.wire.roster import LostNode
from rallypoint.wire.status import JobState, JobStatus

__all__ = [
    "ECHO_GRACE",
    "ECHO_LIMIT",
    "RECONNECT_WITHIN",
    "Settings",
    "State",
    "answer",
    "deadline",
    "delayed",
    "disconnected",
    "dismissed",
    "given_up",
    "hear",
    "new",
    "opened",
    "receive",
    "refusal",
    "resized",
    "sealed",
    "status",
    "stretch",
    "tick",
    "told",
    "told_all",
    "wakes",
]

#: Seconds after which an agent that has no connection left, and did not come back, is lost. This is the reaction time to a
#: killed node; a silent host is noticed by `node_lease` only.
RECONNECT_WITHIN = 0.02


def new(
    settings: Settings,
    *,
    job: str,
    uid: str,
    attempt: int,
    term: int,
    now: float,
    previous: JobStatus | None = None,
    registered: capabilities.Registered = (),
) -> State:
    """Return the state of a starting coordinator; `registered` are its optional capabilities.

    With the `previous` status of the same attempt, the coordinator continues the round: the members of the last world must
    report within `TAKEOVER` seconds, or within their lease if that is longer.
    """
    state = State.fresh(settings, job=job, uid=uid, attempt=attempt, term=term, now=now)
    state = state.with_capabilities(capabilities.restored(registered, previous, uid=uid, attempt=attempt, now=now))
    if previous is None or previous.uid != uid or previous.fence.attempt != attempt:
        return journal.event(state, "coordinator", f"term {term} started", now)
    state = dataclasses.replace(
        state,
        fence=dataclasses.replace(state.fence, round=previous.fence.round),
        state=previous.state,
        world=previous.world,
        closed=ClosedRound.restored(previous),
        away=sent_away(previous),
        start=CoordinatorStart(at=now, inherited=frozenset(incident.id for incident in previous.incidents)),
        course=Course.inherited(previous.progress),
        incidents=previous.incidents,
        folded=previous.folded,
        lost=previous.lost,
        events=previous.events,
        progress=previous.progress,
        samples=previous.samples,
        verdict=previous.verdict,
        result=previous.result,
        peers={m.agent: Peer.recalled(m, previous, now) for m in previous.world},
    )
    state = missing.inherited(state, previous)
    state = rules(state).restore(last_checkpoint.restore(state, previous, now), previous, now)
    return journal.event(
        state, "coordinator", f"term {term} took over from term {previous.fence.term} in round {previous.fence.round}", now
    )


# --- Reports of agents -----------------------------------------------------------------------------------------------------


def receive(state: State, report: AgentReport, now: float) -> State:
    """Store the report of an agent and call `tick`; call `refusal` first."""
    return tick(hear(state, report, now), now)


def hear(state: State, report: AgentReport, now: float) -> State:
    """Store the report of an agent; call `refusal` before, and `tick` after one or several reports."""
    before = state.peers.get(report.agent)
    state, replaced = accept(state, report, now)
    if replaced is not None:
        state = faults.lose(state, replaced, "was replaced", now)
    state = last_world.heard(state, report)
    state = progress.heard(state, report, now)
    last = None if before is None else before.report
    state = newcomers.heard(state, last, report, now)
    return capabilities.on_report(state, report, last, now)


def delayed(state: State, seconds: float) -> State:
    """Extend all deadlines of agents by `seconds`, in which the coordinator read no reports."""
    later = {
        name: dataclasses.replace(p, heard_at=p.heard_at + seconds, gone_at=None if p.gone_at is None else p.gone_at + seconds)
        for name, p in state.peers.items()
    }
    return dataclasses.replace(state, peers=later)


def disconnected(state: State, agent: str, now: float) -> State:
    """Note that the last connection of an agent ended."""
    peer = state.peers.get(agent)
    if peer is None or peer.gone_at is not None:
        return state
    return with_peer(state, dataclasses.replace(peer, gone_at=now))


def resized(state: State, size: Size | None, own: Settings, now: float) -> State:
    """Keep to bounds that are wanted, or to the job's `own`; the very same state where they are kept already.

    A world that is smaller than the new minimum trains on: it grows when enough nodes wait. One that is larger than the new
    maximum trains on, too, until the supervisor has taken the nodes away that are too many.
    """
    low, high = (own.min_nodes, own.max_nodes) if size is None else (size.min_nodes, size.max_nodes)
    if (low, high) == (state.settings.min_nodes, state.settings.max_nodes):
        return state
    before, settings = state.settings, dataclasses.replace(state.settings, min_nodes=low, max_nodes=high)
    state = missing.wanted(dataclasses.replace(state, settings=settings), before, now)
    state = journal.event(state, "resized", f"{low} to {high} nodes are required now", now)
    return tick(state, now)


def given_up(state: State, lost: Iterable[LostNode]) -> State:
    """Reduce the waiting time for members of the last world that a supervisor found lost to their lease.

    Members that have reported to this coordinator are not lost and keep their time. Returns the identical state if no member
    is affected.
    """
    until, lease = {one.node: one.incarnation for one in lost}, state.settings.node_lease
    peers = {
        name: dataclasses.replace(peer, patience=lease)
        for name, peer in state.peers.items()
        if peer.patience > lease and peer.incarnation <= until.get(peer.node, -1)
    }
    return state.with_peers({**state.peers, **peers}) if peers else state


# --- What follows from it --------------------------------------------------------------------------------------------------


def tick(state: State, now: float, *, listened: float | None = None) -> State:
    """Apply all decisions that are due at `now`.

    `listened` is the time up to which all received reports were read (None: `now`). An agent whose report is not read yet does
    not count as lost.
    """
    heard_to = now if listened is None else listened
    state = capabilities.on_tick(state, now)
    for peer in tuple(state.peers.values()):
        if heard_to >= _expires(state, peer):
            state = faults.lose(state, peer, _how_lost(peer), now)
    state = missing.noted(journal.refilled(state, now), heard_to)
    if state.verdict is None and state.state is JobState.RUNNING:
        state = faults.judge_round(state, now)
    if state.verdict is None and state.echoes is not None:
        state = faults.judge_echoes(state, state.echoes, now)
    if state.verdict is None and state.held_verdict is None and state.state is JobState.FORMING:
        state = faults.judge_late(state, now)
    if state.verdict is None and state.held_verdict is None and state.loss is not None:
        state = rules(state).on_tick(faults.judge_losses(state, now), now)
    state = capabilities.after_losses(state, now)
    if state.verdict is None and state.held_verdict is None and state.state is JobState.FORMING:
        state = closing.form(state, now)
    return capabilities.after_tick(state, now)


def wakes(state: State) -> float | None:
    """Return when to call `tick` without a report: at the deadline, or earlier, when an agent becomes silent."""
    return min((at for at in (deadline(state), missing.due(state)) if at is not None), default=None)


def deadline(state: State) -> float | None:
    """Return the earliest time at which `tick` changes the state without a report, or None."""
    times = [_expires(state, peer) for peer in state.peers.values()]
    more = (
        newcomers.due(state),
        capabilities.next_deadline(state),
    )
    times += [at for at in more if at is not None]
    if state.held_verdict is not None:
        return min(times, default=None)
    if state.echoes is not None:
        times.append(echoes_due(state, state.echoes))
    if state.replacements_until is not None:
        times.append(state.replacements_until)
    forming = state.verdict is None and state.state is JobState.FORMING
    if forming and not (outstanding(state) or capabilities.holds_round(state)):
        if state.forming.enough_since is None:
            times.append(state.forming.since + state.settings.join_timeout)
        elif state.world:
            over = last_world.over_at(state)
            times.extend(() if over is None else (over,))
        else:
            times.append(state.forming.enough_since + state.settings.last_call)
    return min(times, default=None)


def _expires(state: State, peer: Peer) -> float:
    lease = peer.heard_at + max(state.settings.node_lease, peer.patience) + stretch(state)
    return lease if peer.gone_at is None else min(lease, peer.gone_at + RECONNECT_WITHIN)


def _how_lost(peer: Peer) -> str:
    return "sent no report within its lease" if peer.gone_at is None else "closed its connection and did not reconnect"


# --- What is published -----------------------------------------------------------------------------------------------------


def status(state: State, now: float) -> JobStatus:
    """Return the job status to publish."""
    told = dataclasses.replace(picture.status(state, now), tolerance=rules(state).tolerance(state))
    told = dataclasses.replace(told, sections=capabilities.status_sections(state))
    return missing.told(told, state, now)


def answer(state: State, agent: str) -> Reply | None:
    """Return what there is to say to an agent, or None while there is nothing."""
    if state.verdict is not None:
        return Stop(fence=state.fence, verdict=state.verdict)
    if agent in state.away:
        return Stop(fence=state.fence, verdict=journal.farewell(state, agent))
    peer = state.peers.get(agent)
    if peer is None or peer.report.state is AgentState.LEAVING:
        return None
    if peer.report.state is AgentState.WAITING:
        return _assignment(state, peer) or capabilities.reply_for_waiting(state, peer.report)
    if state.state is JobState.FORMING:
        forming = state.forming
        reason = forming.reason or "a new round is forming"
        return Regroup(fence=state.fence, reason=reason, keep=forming.keep, dead=forming.dead)
    if _is_current(state, peer) and agent in places(state.world):
        running = peer.report.state is AgentState.RUNNING
        asked = capabilities.reply_for(state, peer.report)
        return asked if running else None
    return Regroup(fence=state.fence, reason=f"the other nodes continue in round {state.fence.round}")


def _is_current(state: State, peer: Peer) -> bool:
    """Return whether a report is about the current round, or about the last one."""
    return peer.report.round == state.fence.round


def _assignment(state: State, peer: Peer) -> Assignment | None:
    member = places(state.world).get(peer.report.agent)
    if state.state is not JobState.RUNNING or member is None or _is_current(state, peer):
        return None
    budgets = (state.settings.restarts, state.settings.hangs)
    restarts = sum(b.total(state.incidents, state.fence.attempt, folded=state.folded) for b in budgets)
    return Assignment(
        fence=state.fence,
        node=member.node,
        group_rank=member.group_rank,
        group_world_size=len(state.world),
        first_rank=member.first_rank,
        world_size=world_size(state.world),
        store=state.closed.store,
        restart_count=restarts,
        max_restarts=state.settings.max_restarts,
        digest=picture.digest(state),
        kept=state.closed.kept,
        training_port=state.closed.training_port,
        sections=capabilities.assignment_sections(state, member),
    )


def told(state: State, agent: str, reply: Reply | None = None) -> State:
    """Store that an agent received the verdict or `reply`: with a place in a round, it may train before its next report."""
    peer = state.peers.get(agent)
    if peer is None:
        return state
    if isinstance(reply, Assignment):
        return with_peer(state, dataclasses.replace(peer, assigned=reply.fence.round))
    return with_peer(state, dataclasses.replace(peer, told=True)) if reply is None or isinstance(reply, Stop) else state


def told_all(state: State, replies: Iterable[tuple[str, Reply]]) -> State:
    """Store the replies that many agents received; see `told`."""
    state = opened(state)
    for agent, reply in replies:
        state = told(state, agent, reply)
    return sealed(state)


def dismissed(state: State) -> bool:
    """Return whether there is a verdict and every living agent has received it."""
    return state.verdict is not None and all(peer.told for peer in living(state))


def refusal(state: State, report: AgentReport) -> Refusal | None:
    """Return why a report cannot be taken, or None when it can."""
    if abs(report.version - MESSAGES_VERSION) > 1:
        return Refusal(
            fence=state.fence,
            reason=f"protocol version {report.version} is not supported; expected {MESSAGES_VERSION}",
            stale=True,
        )
    if report.job != state.job:
        return Refusal(
            fence=state.fence,
            reason=f"the agent belongs to job {report.job!r}, but this coordinator to job {state.job!r}",
            stale=True,
        )
    if report.fence.attempt not in (0, state.fence.attempt):
        reason = f"the agent belongs to attempt {report.fence.attempt}, but this coordinator to attempt {state.fence.attempt}"
        return Refusal(fence=state.fence, reason=reason, stale=report.fence.attempt < state.fence.attempt)
    if report.fence.term > state.fence.term:
        reason = f"coordinator term {report.fence.term} has replaced this coordinator (term {state.fence.term})"
        return Refusal(fence=state.fence, reason=reason, stale=False)
    return _slot_refusal(state, report)


def _slot_refusal(state: State, report: AgentReport) -> Refusal | None:
    if report.node < 0 or report.agent in state.peers:
        return None
    held = holder(state, report.node)
    if held is None or report.incarnation > held.incarnation:
        return None
    if report.incarnation < held.incarnation:
        newer, older = f"incarnation {held.incarnation}", f"incarnation {report.incarnation}"
        reason = f"a newer process of node {report.node} ({newer}) has replaced this agent ({older})"
        return Refusal(fence=state.fence, reason=reason, stale=True)
    if held.gone_at is not None:
        return None
    reason = f"node {report.node} is already used by agent {held.report.agent} on {held.report.host}"
    return Refusal(fence=state.fence, reason=reason, stale=False)
