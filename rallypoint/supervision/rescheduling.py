"""The profile `mindcluster`: what Ascend's scheduler decides about faulty nodes, carried out. Pure.

`scheduling.decide` has the rules. Here its decision becomes one of the job's own: a reset of everything, the replacement of
single nodes, or nothing; and what nobody answers does not stay so for ever: after the failure grace it ends the job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.supervision import clocks, endings, healing, scheduling
from rallypoint.supervision.charges import charged
from rallypoint.supervision.deadline import Deadline
from rallypoint.supervision.record import ConditionType, JobRecord
from rallypoint.supervision.scheduling import Decision, Fault, FaultReason, Pending, Scope, State
from rallypoint.supervision.turn import Step, Turn, since
from rallypoint.wire.incident import Cause, FaultKind, Incident
from rallypoint.wire.plan import Scheduling

__all__ = ["reschedule"]

_ROUNDS = "pending-rounds"
_OUTSIDE = frozenset({FaultKind.NODE_LOST, FaultKind.EVICTED, FaultKind.PREEMPTED, FaultKind.DELETED, FaultKind.FLAGGED})


def reschedule(turn: Turn) -> Step:
    """Answer the faults of this turn, and what time alone changes."""
    settings = turn.policy.scheduling or Scheduling()
    now = turn.record.clock
    decision = scheduling.decide(settings, _faults(turn), _state(turn), now)
    turn = turn.with_record(_remember(turn.record, decision.pending))
    if decision.scope is Scope.JOB:
        return endings.reset_or_fail(
            turn, "FoundFailedPods", decision.reason, cost=int(decision.charge), free=not decision.charge
        )
    if decision.scope is Scope.PODS:
        return Step(record=_replaced(turn, decision), deadlines=_next(decision, now))
    lost = tuple(s for s in turn.record.slots if s.lost_clock is not None)
    if lost:
        return _unanswered(turn, f"{healing.describe_lost(turn.record, lost)}; {decision.reason}")
    found = turn.record.find(ConditionType.UNHEALTHY)
    record = turn.record
    if found is not None and found.value and found.reason == "FoundFailedPods":
        record = record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False)
    return Step(record=record, deadlines=_next(decision, now))


def _faults(turn: Turn) -> Iterable[Fault]:
    """Nodes that are lost and not replaced, by why they were lost, and those whose host was flagged while they run."""
    reasons = {(i.id.node, i.id.sequence): i for i in turn.record.incidents if i.id.attempt == turn.record.attempt}
    for slot in turn.record.slots:
        if slot.lost_clock is not None:
            yield Fault(node=slot.node, reason=_reason(reasons.get((slot.node, slot.incarnation))))
    for node in turn.census.flagged:
        yield Fault(node=node.node, reason=FaultReason.HARDWARE)


def _reason(incident: Incident | None) -> FaultReason:
    if incident is None or incident.kind in _OUTSIDE:
        return FaultReason.LOST
    return FaultReason.CONTAINER


def _state(turn: Turn) -> State:
    record = turn.record
    timer = clocks.find(record, _ROUNDS)
    pending = Pending() if timer is None else Pending(checks=int(timer.spent), at=timer.since)
    waiting = {s.node for s in turn.census.missing} | {s.node for s in record.slots if s.pending_clock is not None}
    replaced = frozenset(s.node for s in record.slots if s.incarnation > 1 and s.node in waiting)
    return State(charged=len(record.charges), replaced=replaced, pending=pending)


def _remember(record: JobRecord, pending: Pending) -> JobRecord:
    """Keep the count of checks in the record's timers: `spent` are checks here, `since` is the last one."""
    if pending == Pending():
        return clocks.stop(record, _ROUNDS)
    return clocks.put(record, _ROUNDS, spent=float(pending.checks), since=pending.at)


def _replaced(turn: Turn, decision: Decision) -> JobRecord:
    """Replace the faulty nodes alone; nodes that still run on a flagged host are ended as the settings say."""
    record = charged(turn.record, turn.policy) if decision.charge else turn.record
    flagged = {n.node: n for n in turn.census.flagged}
    record = healing.evacuate(record, (flagged[node] for node in decision.nodes if node in flagged))
    for slot in record.slots:
        if slot.node in decision.nodes and slot.lost_clock is not None:
            record = healing.replace_node(record, slot)
    if not decision.charge:
        record = _free(record, decision)
    return record.with_history("pods-rescheduled", decision.reason)


def _free(record: JobRecord, decision: Decision) -> JobRecord:
    """A hardware fault costs no budget, in whatever words it was first told."""
    freed = tuple(
        dataclasses.replace(i, cause=Cause.EVACUATION)
        if i.cause is Cause.NODE and i.id.node in decision.nodes and i.id.attempt == record.attempt
        else i
        for i in record.incidents
    )
    return dataclasses.replace(record, incidents=freed)


def _unanswered(turn: Turn, why: str) -> Step:
    """Nobody answers this fault: after the failure grace the job has failed."""
    turn = turn.with_record(turn.record.unhealthy("FoundFailedPods"))
    at = since(turn.record, ConditionType.UNHEALTHY, value=True) + turn.policy.failure_grace
    if turn.record.clock < at:
        return Step(
            record=turn.record, deadlines=(Deadline(at=at, clock="failure", then="the job fails: nobody answers the fault"),)
        )
    return endings.fail(turn, "FaultUnhandled", why)


def _next(decision: Decision, now: float) -> tuple[Deadline, ...]:
    if decision.look_at is None or decision.look_at <= now:
        return ()
    return (Deadline(at=decision.look_at, clock=_ROUNDS, then="the replaced pods are looked at again"),)
