"""Pre-check operators in the coordinator: no round starts while they run. Pure; `service.py` runs the operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.capabilities.base import (
    CoordinatorCapability,
    Effect,
    EndAttempt,
    RecordEvent,
    ReplaceNode,
    ReportedPeer,
    RestartForming,
    RoundView,
)
from rallypoint.capabilities.user_hooks import pre_checks
from rallypoint.capabilities.user_hooks.pre_checks import Action, ActionKind, Answer, PreChecks
from rallypoint.capabilities.user_hooks.wire import PlanSection, StatusSection
from rallypoint.wire.messages import AgentState
from rallypoint.wire.plan import Plan, Profile
from rallypoint.wire.pre_check import PreCheck, PreCheckState
from rallypoint.wire.status import JobStatus, Outcome, Verdict

__all__ = ["Answered", "Failed", "UserHooks", "create", "facts"]

#: Neither a restart nor another node helps: a class is missing, or an operator ended the job.
_FINAL = "FailNow"
_FAILED = "PreCheckFailed"

_RESULTS = {PreCheckState.PASSED: "passed", PreCheckState.FAILED: "failed"}


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Request of the service: apply the result and the actions of an operator; `last`: a failed check is not repeated."""

    index: int
    answer: Answer
    last: bool


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Request of the service: end the attempt and the job, because the operators cannot run."""

    message: str


class UserHooks(CoordinatorCapability[PreChecks]):
    """The coordinator's half of the capability."""

    name = "user_hooks"

    def __init__(self, plan: Plan) -> None:
        self._ops = PlanSection.of(plan).pre_check_ops
        self._replaceable = plan.budgets.node_replacements > 0 or plan.profile is Profile.APPWRAPPER

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> PreChecks:
        """Return the initial state; the operators of an attempt that has trained do not run again."""
        if not self._ops:
            return PreChecks()
        if published is None or not continues:
            return pre_checks.begun(self._ops)
        return pre_checks.begun(self._ops, StatusSection.of(published).pre_checks, trained=published.fence.round > 0)

    def holds_round(self, state: PreChecks) -> bool:
        """Return whether operators run."""
        return state.waiting

    def on_request(self, state: PreChecks, request: object, view: RoundView, now: float) -> tuple[PreChecks, Sequence[Effect]]:
        """Apply the result of an operator, or end the job."""
        if not state.waiting or view.verdict is not None:
            return state, ()
        if isinstance(request, Failed):
            return state, (_over(_FINAL, request.message),)
        if not isinstance(request, Answered):
            return state, ()
        after = pre_checks.answered(state, request.index, request.answer, last=request.last)
        effects = tuple(self._effects(state.told[request.index], after.told[request.index], request.answer, view))
        return after, effects if after.waiting else (*effects, RestartForming())

    def to_status(self, state: PreChecks, view: RoundView) -> StatusSection:
        """Return the results of the operators."""
        return StatusSection(pre_checks=state.told)

    def _effects(self, before: PreCheck, told: PreCheck, answer: Answer, view: RoundView) -> Iterator[Effect]:
        if (told.state, told.message) != (before.state, before.message):
            said = f": {told.message}" if told.message else ""
            yield RecordEvent(kind="pre-check", detail=f"{told.operator} {_RESULTS.get(told.state, 'did not pass')}{said}")
        replaced: set[str] = set()
        for action in answer.actions:
            effect = self._effect(told, action, view, replaced)
            if effect is not None:
                yield effect
            if isinstance(effect, EndAttempt):
                return
            if isinstance(effect, ReplaceNode):
                replaced.add(effect.agent)
        if told.state is PreCheckState.FAILED:
            tries = f"did not pass after {told.tries} tries: {told.message or 'no message'}"
            yield _over(_FAILED, f"pre-check {told.operator} {tries}")

    def _effect(self, told: PreCheck, action: Action, view: RoundView, replaced: set[str]) -> Effect | None:
        if action.kind is ActionKind.NOTHING:
            return None
        why = action.message or told.message or "no message"
        if action.kind is ActionKind.ABORT:
            return _over(_FINAL, f"pre-check {told.operator} ended the job: {why}")
        if action.kind is ActionKind.EVENT:
            return RecordEvent(kind="pre-check", detail=f"{told.operator}: {why}")
        gone = view.away | replaced
        peer = next((p for p in _living(view) if p.node == action.node and p.report.agent not in gone), None)
        asked = f"{told.operator} requests the replacement of node {action.node}"
        if peer is None:
            return RecordEvent(kind="pre-check", detail=f"{asked}, but the job has no such node", once=True)
        if not self._replaceable:
            return _over(_FAILED, f"pre-check {asked}, but node replacement is disabled in this job: {why}")
        return ReplaceNode(
            agent=peer.report.agent,
            reason=f"node {peer.node} on {peer.report.host} did not pass the pre-check {told.operator}: {why}",
            error=why,
            rule=f"pre-check {told.operator}",
        )


def create(plan: Plan) -> UserHooks:
    """Return the coordinator's half; without operators it never holds a round."""
    return UserHooks(plan)


def facts(plan: Plan, view: RoundView, known: Mapping[int, str], now: float) -> dict[str, Any]:
    """Return the job arguments of an operator; `known` are the hosts of all nodes that have joined so far."""
    here = {peer.node: peer.report.host for peer in _living(view) if peer.gone_at is None}
    nodes = [
        {"id": node, "host": here.get(node, host), "status": "Running" if node in here else "Lost"}
        for node, host in sorted({**known, **here}.items())
    ]
    return {
        "job_name": plan.name,
        "min_nodes": view.min_nodes,
        "max_nodes": view.max_nodes,
        "node_unit": plan.node_unit,
        "pending_timeout": plan.grace.pending_timeout,
        "pending_fail_strategy": plan.grace.pending_fail_strategy,
        "waited": max(0.0, now - view.since),
        "nodes": nodes,
    }


def _living(view: RoundView) -> tuple[ReportedPeer, ...]:
    return tuple(peer for peer in view.peers.values() if peer.report.state is not AgentState.LEAVING)


def _over(reason: str, message: str) -> EndAttempt:
    return EndAttempt(verdict=Verdict(outcome=Outcome.FAILED, reason=reason, message=message))
