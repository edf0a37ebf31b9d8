"""What the rendezvous does about pre-check operators: no round is closed while they are asked. Pure.

Who asks is coordinator/prechecking.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rallypoint.agent.precheck import course
from rallypoint.agent.precheck.course import Action, ActionKind, Answer
from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.peers import Peer, State, living
from rallypoint.wire.incident import Answer as Ruling
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.pre_check import PreCheckState
from rallypoint.wire.status import JobStatus, Outcome, Verdict

__all__ = ["answered", "begun", "facts", "inherited", "refused", "waiting"]

#: Nothing of the job can help, and no other node: a class is missing, or an operator ended the job.
_FINAL = "FailNow"
_FAILED = "PreCheckFailed"


def begun(state: State) -> State:
    """Return the state of a coordinator that begins."""
    ops = state.settings.pre_check_ops
    return dataclasses.replace(state, prechecks=course.begun(ops)) if ops else state


def inherited(state: State, previous: JobStatus) -> State:
    """Return the state of a coordinator that takes over: an attempt that has trained is not asked about again."""
    ops = state.settings.pre_check_ops
    if not ops:
        return state
    found = course.begun(ops, previous.pre_checks, trained=previous.fence.round > 0)
    return dataclasses.replace(state, prechecks=found)


def waiting(state: State) -> bool:
    """Return whether operators are being asked: no round is closed meanwhile, and nobody is late for it."""
    return state.prechecks.waiting


def facts(state: State, known: Mapping[int, str], now: float) -> dict[str, Any]:
    """Return what an operator is told of the job; `known` are the hosts of nodes that came at any time."""
    settings = state.settings
    here = {peer.node: peer.report.host for peer in living(state) if peer.gone_at is None}
    nodes = [
        {"id": node, "host": here.get(node, host), "status": "Running" if node in here else "Lost"}
        for node, host in sorted({**known, **here}.items())
    ]
    return {
        "job_name": state.job,
        "min_nodes": settings.min_nodes,
        "max_nodes": settings.max_nodes,
        "node_unit": settings.node_unit,
        "pending_timeout": settings.pending_timeout,
        "pending_fail_strategy": settings.pending_fail_strategy,
        "waited": max(0.0, now - state.since),
        "nodes": nodes,
    }


def answered(state: State, index: int, answer: Answer, now: float, *, last: bool) -> State:
    """Take over what an operator said, and do what it wants; `last`: it is not asked again if it is not content."""
    if not waiting(state) or state.verdict is not None:
        return state
    before = state.prechecks.told[index]
    state = dataclasses.replace(state, prechecks=course.answered(state.prechecks, index, answer, last=last))
    told = state.prechecks.told[index]
    if (told.state, told.message) != (before.state, before.message):
        words = {PreCheckState.PASSED: "passed", PreCheckState.FAILED: "failed"}
        said = f": {told.message}" if told.message else ""
        state = telling.event(state, "pre-check", f"{told.operator} {words.get(told.state, 'did not pass')}{said}", now)
    for action in answer.actions:
        state = _done(state, index, action, now)
    if state.verdict is None and told.state is PreCheckState.FAILED:
        message = f"pre-check {told.operator} did not pass after {told.tries} tries: {told.message or 'no message'}"
        state = _over(state, _FAILED, message, now)
    if not waiting(state):  # what follows, a round, has its whole time from here
        state = dataclasses.replace(state, forming_since=now, enough_since=None)
    return state


def refused(state: State, message: str, now: float) -> State:
    """End the attempt, and with it the job: operators cannot be asked at all."""
    if not waiting(state) or state.verdict is not None:
        return state
    return _over(state, _FINAL, message, now)


def _done(state: State, index: int, action: Action, now: float) -> State:
    told = state.prechecks.told[index]
    if state.verdict is not None or action.kind is ActionKind.NOTHING:
        return state
    why = action.message or told.message or "no message"
    if action.kind is ActionKind.ABORT:
        return _over(state, _FINAL, f"pre-check {told.operator} ended the job: {why}", now)
    if action.kind is ActionKind.EVENT:
        return telling.event(state, "pre-check", f"{told.operator}: {why}", now)
    peer = next((peer for peer in living(state) if peer.node == action.node and peer.report.agent not in state.away), None)
    if peer is None:
        return telling.once(
            state, "pre-check", f"{told.operator} requests the replacement of node {action.node}, which does not exist", now
        )
    if not state.settings.elsewhere:
        message = (
            f"pre-check {told.operator} requests the replacement of node {action.node}, but nodes of this job are not "
            f"replaced: {why}"
        )
        return _over(state, _FAILED, message, now)
    return _replaced(state, peer, told.operator, why, now)


def _replaced(state: State, peer: Peer, operator: str, why: str, now: float) -> State:
    """Let a node leave, so that another takes its place."""
    told = telling.node_incident(state, peer, "", now)
    culprit = None if told.culprit is None else dataclasses.replace(told.culprit, error=why)
    told = dataclasses.replace(
        told,
        reason=f"node {peer.node} on {peer.report.host} did not pass the pre-check {operator}: {why}",
        culprit=culprit,
        kind=FaultKind.HARDWARE,
        answer=Ruling.RETRY_ELSEWHERE,
        rule=f"pre-check {operator}",
    )
    state = dataclasses.replace(telling.incident(state, told), away=state.away | {peer.report.agent})
    return telling.event(state, "sent-away", told.reason, now)


def _over(state: State, reason: str, message: str, now: float) -> State:
    return telling.verdict(state, Verdict(outcome=Outcome.FAILED, reason=reason, message=message), now)
