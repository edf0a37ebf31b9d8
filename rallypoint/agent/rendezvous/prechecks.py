"""Pre-check operators in the rendezvous: no round is closed while they run. Pure.

coordinator/prechecking.py runs the operators.
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

#: Neither a restart nor another node helps: a class is missing, or an operator ended the job.
_FINAL = "FailNow"
_FAILED = "PreCheckFailed"


def begun(state: State) -> State:
    """Return the initial state of the first coordinator."""
    ops = state.settings.pre_check_ops
    return dataclasses.replace(state, prechecks=course.begun(ops)) if ops else state


def inherited(state: State, previous: JobStatus) -> State:
    """Return the initial state of a later coordinator: an attempt that has trained is not checked again."""
    ops = state.settings.pre_check_ops
    if not ops:
        return state
    found = course.begun(ops, previous.pre_checks, trained=previous.fence.round > 0)
    return dataclasses.replace(state, prechecks=found)


def waiting(state: State) -> bool:
    """Return whether operators run: no round is closed meanwhile, and no join timeout expires."""
    return state.prechecks.waiting


def facts(state: State, known: Mapping[int, str], now: float) -> dict[str, Any]:
    """Return the job arguments of an operator; `known` are the hosts of all nodes that have joined so far."""
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
    """Apply the result and the actions of an operator; `last`: a failed check is not repeated."""
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
    if not waiting(state):  # the join timeout of the next round starts here
        state = dataclasses.replace(state, forming_since=now, enough_since=None)
    return state


def refused(state: State, message: str, now: float) -> State:
    """End the attempt and the job: the operators cannot run."""
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
    """Remove a node, so that a replacement joins."""
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
