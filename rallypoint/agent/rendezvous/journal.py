"""Incidents and events of the rendezvous. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.agent.culprit import culprit_first
from rallypoint.agent.rendezvous.peers import Peer, State, members
from rallypoint.supervision.folding import fold_told
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.exits import signal_name
from rallypoint.wire.incident import FREE, Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.messages import SENT_AWAY
from rallypoint.wire.status import Event, JobState, Outcome, Verdict

__all__ = [
    "away_incident",
    "climbed",
    "describe",
    "event",
    "farewell",
    "healed",
    "incident",
    "judged_incident",
    "last_step",
    "node_incident",
    "process_incident",
    "refilled",
    "trained",
    "verdict",
    "without",
]

#: Rungs of process faults that keep the other workers alive.
_IN_PROCESSES = (Rung.RETRY, Rung.RECOVER_IN_PLACE, Rung.RECOVER)

#: Number of stored events; the oldest are dropped first.
EVENT_LIMIT = 300


def event(state: State, kind: str, detail: str, now: float) -> State:
    """Return the state with an added event."""
    line = Event(at=now, kind=kind, detail=detail, round=state.fence.round)
    return dataclasses.replace(state, events=(*state.events, line)[-EVENT_LIMIT:])


def once(state: State, kind: str, detail: str, now: float) -> State:
    """Return the state with an added event, unless it equals the last event."""
    last = state.events[-1] if state.events else None
    return state if last is not None and (last.kind, last.detail) == (kind, detail) else event(state, kind, detail, now)


def incident(state: State, told: Incident) -> State:
    """Return the state with an added or updated incident; the oldest incidents above the limit become counts."""
    course = state.course
    if told.rung is not Rung.NOTIFY and all(known.id != told.id for known in state.incidents):
        course = course.paused() if told.cause in FREE else course.after_fault()
    known = merge_incidents(state.incidents, (told,))
    incidents, folded = fold_told(known, state.folded, state.fence.attempt)
    lost = state.lost if len(incidents) == len(known) else _lost_with(state, known, incidents)
    return dataclasses.replace(state, incidents=incidents, folded=folded, lost=lost, course=course)


def _lost_with(state: State, known: tuple[Incident, ...], kept: tuple[Incident, ...]) -> dict[str, float]:
    """Return the lost seconds, including those of incidents that became counts."""
    ids, lost = {i.id for i in kept}, dict(state.lost)
    for i in known:
        if i.id not in ids and i.healed_at is not None and i.id.attempt == state.fence.attempt:
            took = max(0.0, (i.recovered_at or i.healed_at) - i.detected_at)
            lost[i.cause.value] = round(lost.get(i.cause.value, 0.0) + took, 3)
    return lost


def refilled(state: State, now: float) -> State:
    """Return the state in which process faults and hangs that no longer use a budget are marked."""
    if not state.incidents:
        return state
    incidents = state.incidents
    for budget in (state.settings.restarts, state.settings.hangs):
        incidents = budget.refilled(incidents, state.course, clock=now, when=state.when)
    return state if incidents is state.incidents else dataclasses.replace(state, incidents=incidents)


def verdict(state: State, given: Verdict, now: float) -> State:
    """Return the state with its verdict."""
    over = JobState.SUCCEEDED if given.outcome is Outcome.SUCCEEDED else JobState.FAILED
    return event(dataclasses.replace(state, state=over, verdict=given), over.value, given.message, now)


def node_incident(state: State, peer: Peer, how: str, now: float) -> Incident:
    """Return the incident of a lost node; the supervisor classifies its end."""
    return Incident(
        id=IncidentId(attempt=state.fence.attempt, round=0, node=peer.node, sequence=peer.incarnation),
        cause=Cause.NODE,
        rung=without(state, peer),
        reason=f"node {peer.node} on {peer.report.host} {how}",
        culprit=Culprit(node=peer.node, incarnation=peer.incarnation, host=peer.report.host, at=now),
        detected_at=now,
        last_step=last_step(state),
        kind=FaultKind.NODE_LOST,
    )


def away_incident(state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float) -> Incident:
    """Return the incident of a node that must leave because of a fault of one of its workers.

    It has the id of the node's end, which follows: one fault uses the budget once.
    """
    said = f"node {peer.node} on {peer.report.host} failed" if culprit is None else describe(culprit)
    return dataclasses.replace(
        node_incident(state, peer, "must leave", now),
        reason=f"{said}; node {peer.node} must leave: {judged.rule}",
        culprit=culprit,
        kind=judged.kind,
        answer=Answer.RETRY_ELSEWHERE,
        rule=judged.rule,
    )


def without(state: State, peer: Peer) -> Rung:
    """Return the rung for the loss of a member: the others continue if enough remain."""
    left = [m for m in state.world if m.agent != peer.report.agent]
    return Rung.ELASTIC_TRAINING if len(left) >= state.settings.min_nodes else Rung.RECOVER


def farewell(state: State, agent: str) -> Verdict:
    """Return the reply to an agent that was removed."""
    # An agent that was removed by a node check may be in no world yet.
    known = state.peers.get(agent) or next((m for m in state.world if m.agent == agent), None)
    node = (-1, -1) if known is None else (known.node, known.incarnation)
    found = next((i for i in state.incidents if i.cause is Cause.NODE and (i.id.node, i.id.sequence) == node), None)
    message = "another process has replaced this node" if found is None else found.reason
    return Verdict(outcome=Outcome.FAILED, reason=SENT_AWAY, message=message, culprit=None if found is None else found.culprit)


def judged_incident(told: Incident, judged: Judgement) -> Incident:
    """Return an incident with its verdict."""
    cause = Cause.HANG if judged.cause is Cause.HANG else told.cause
    return dataclasses.replace(told, cause=cause, kind=judged.kind, answer=judged.answer, rule=judged.rule)


def process_incident(state: State, failed: list[Peer], now: float, culprit: Culprit | None = None) -> Incident:
    """Return the incident of a round in which workers failed on `failed` nodes; `culprit` is the first one by default."""
    failures = [failure for peer in failed for failure in peer.report.failures]
    if culprit is None and failures:
        culprit = culprit_first(failures)[0]
    first = failed[0]
    reason = first.report.reason or "the agent left the round" if culprit is None else describe(culprit)
    return Incident(
        id=IncidentId(
            attempt=state.fence.attempt,
            round=state.fence.round,
            node=first.node if culprit is None else culprit.node,
            local_rank=-1 if culprit is None else culprit.local_rank,
        ),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason=f"node {first.node} on {first.report.host}: {reason}" if culprit is None else reason,
        culprit=culprit,
        detected_at=now,
        last_step=last_step(state),
    )


def climbed(state: State) -> State:
    """Return the state in which recovery in place is replaced by a restart of all workers."""
    hoped = [
        dataclasses.replace(i, rung=Rung.RESTART_WORKERS)
        for i in state.incidents
        if i.rung in _IN_PROCESSES and i.cause is Cause.PROCESS and _of_round(state, i)
    ]
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, hoped)) if hoped else state


def _of_round(state: State, told: Incident) -> bool:
    return (told.id.attempt, told.id.round) == (state.fence.attempt, state.fence.round)


def last_step(state: State) -> int | None:
    """Return the highest step that a rank of the round has reported.

    The failed node has just reported its step, while the node of the lowest rank may report only once per interval.
    """
    told = [
        worker.step
        for peer in members(state)
        if peer.report.round == state.fence.round
        for worker in peer.report.workers
        if worker.step is not None
    ]
    known = [] if state.progress.step is None else [state.progress.step]
    return max((*told, *known), default=None)


def describe(culprit: Culprit) -> str:
    """Return one sentence: which rank on which node ended how."""
    how = (
        f"was killed by {signal_name(culprit.signal)}"
        if culprit.signal is not None
        else f"exited with code {culprit.exit_code}"
    )
    if culprit.lives:
        how = "raised an error in a training step and is still running"
    said = f": {culprit.error}" if culprit.error else ""
    return f"rank {culprit.rank} (local rank {culprit.local_rank}) on node {culprit.node} ({culprit.host}) {how}{said}"


def healed(state: State, now: float) -> State:
    """Mark incidents as recovered when a complete world runs again and no step was reported."""
    everyone = len(members(state)) == len(state.world)
    if not everyone or any(p.report.round != state.fence.round for p in members(state)):
        return state
    incidents = tuple(
        dataclasses.replace(i, healed_at=now)
        for i in state.incidents
        if i.healed_at is None and i.last_step is None and i.id.attempt == state.fence.attempt and not _goes_on(state, i)
    )
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, incidents)) if incidents else state


def trained(state: State, now: float) -> State:
    """Record the first optimizer step after a fault for workers that report no step; call it for a running round."""
    open_ = [
        i
        for i in state.incidents
        if i.trained_at is None and i.healed_at is not None and i.last_step is None and i.id.attempt == state.fence.attempt
        if i.cause is not Cause.COORDINATOR and i.rung is not Rung.NOTIFY
    ]
    if not open_ or not any(_steps(peer, state.fence.round) for peer in members(state)):
        return state
    known = [dataclasses.replace(i, trained_at=now) for i in open_]
    state = dataclasses.replace(state, incidents=merge_incidents(state.incidents, known))
    took = now - min(i.detected_at for i in open_)
    return event(state, "resumed", f"first optimizer step {took:.1f} s after the interruption", now)


def _steps(peer: Peer, round_: int) -> bool:
    """Return whether a worker of a round has completed an optimizer step, independent of its reports."""
    own = peer.report.workers if peer.report.round == round_ else ()
    return any(worker.liveness and worker.step is None and worker.resumed_from is None for worker in own)


def _goes_on(state: State, told: Incident) -> bool:
    """Return whether an incident is a hang without an action; a complete world does not end it."""
    return told.rung is Rung.NOTIFY and told.id.round == state.fence.round
