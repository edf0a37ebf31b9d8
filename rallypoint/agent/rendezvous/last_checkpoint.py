"""The rung `dump`: before an attempt ends because no cheaper recovery is left, its last snapshot becomes a checkpoint. Pure.

The verdict is known and held back (`State.held_verdict`), and no round is formed meanwhile. A capability saves the checkpoint
(`rallypoint.capabilities.snapshots`) and ends the attempt with the effect `EndSaving`; the verdict then names the outcome.

A coordinator that takes over begins again, with the reason that its predecessor left in the incident.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous import journal
from rallypoint.agent.rendezvous.peers import Peer, State, members
from rallypoint.agent.rendezvous.profile import rules
from rallypoint.capabilities.base import EndSaving
from rallypoint.wire.incident import Cause, Incident, Rung
from rallypoint.wire.messages import AgentState
from rallypoint.wire.status import NODE_LOST, JobState, JobStatus, Outcome, Verdict

__all__ = ["begin", "can_save", "end", "possible", "regrouped", "restore"]


def possible(state: State) -> bool:
    """Return whether the job allows a last checkpoint, and a survivor can save one."""
    return Rung.DUMP in rules(state).permitted(state) and can_save(state, _survivors(state))


def can_save(state: State, peers: Iterable[Peer]) -> bool:
    """Return whether one of these agents can save a last checkpoint."""
    reports = [peer.report for peer in peers]
    return any(capability.can_save(reports) for capability in state.capabilities.registered)


def regrouped(state: State) -> bool:
    """Return whether all survivors of the last world wait without workers: from then on `possible` is certain.

    The report of an agent that trains is as old as its report interval, and its first snapshot may be newer.
    """
    return all(peer.report.state is AgentState.WAITING for peer in _survivors(state))


def _survivors(state: State) -> tuple[Peer, ...]:
    left = (peer for peer in members(state) if peer.report.state is not AgentState.LEAVING)
    return tuple(peer for peer in left if peer.report.agent not in state.away)


def begin(state: State, told: Incident, verdict: Verdict, now: float) -> State:
    """Return the state of a job that ends with `verdict` once its last checkpoint is saved."""
    state = journal.incident(state, dataclasses.replace(told, rung=Rung.DUMP))
    state = journal.event(state, "dump", f"saving a last checkpoint, because the job ends: {verdict.message}", now)
    return dataclasses.replace(state.with_forming(keep=False), held_verdict=verdict, echoes=None)


def restore(state: State, previous: JobStatus, now: float) -> State:
    """Return the state of a coordinator that takes over while a last checkpoint is saved."""
    found = [i for i in previous.incidents if i.rung is Rung.DUMP and i.id.attempt == state.fence.attempt]
    if not found or previous.verdict is not None:
        return state
    last = found[-1]
    message = f"{last.reason}; no cheaper recovery is left"
    reason = NODE_LOST if last.cause in (Cause.NODE, Cause.SCALE) else "WorkersFailed"
    verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message, culprit=last.culprit)
    state = begin(state, last, verdict, now).with_forming(reason=last.reason, dead=True, since=now)
    return dataclasses.replace(state, state=JobState.FORMING)


def end(state: State, outcome: EndSaving, now: float) -> State:
    """Give the verdict, with the outcome of the checkpoint."""
    verdict = state.held_verdict
    if verdict is None:
        return state
    if not outcome.saved:
        of_attempt = (i for i in state.incidents if i.rung is Rung.DUMP and i.id.attempt == state.fence.attempt)
        for incident in of_attempt:
            state = journal.incident(state, dataclasses.replace(incident, rung=Rung.EXIT))
    state = journal.event(state, "dump", outcome.detail, now)
    return journal.verdict(state, dataclasses.replace(verdict, message=f"{verdict.message}; {outcome.detail}"), now)
