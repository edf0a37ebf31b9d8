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
from rallypoint.supervision.strategy import Ability, Choice, Failure, FaultType, Situation, Strategy, after_failure, resolve
from rallypoint.supervision.strategy import Fault as RankFault
from rallypoint.supervision.turn import Step, Turn, over, since
from rallypoint.wire.incident import Cause, FaultKind, Incident
from rallypoint.wire.plan import Scheduling

__all__ = ["reschedule"]

_ROUNDS, _WAIT = "pending-rounds", "wait-reschedule"

#: The slot whose pod holds rank 0.
_MASTER = 0

_OUTSIDE = frozenset({FaultKind.NODE_LOST, FaultKind.EVICTED, FaultKind.PREEMPTED, FaultKind.DELETED, FaultKind.FLAGGED})


def reschedule(turn: Turn) -> Step:
    """Answer the faults of this turn, and what time alone changes."""
    now, state, faults = turn.record.clock, _state(turn), tuple(_faults(turn))
    turn, settings = _process_level(turn, faults, state)
    decision = scheduling.decide(settings, faults, state, now)
    turn = turn.with_record(_remember(turn.record, decision.pending))
    if decision.scope is Scope.JOB:
        return endings.reset_or_fail(
            turn, "FoundFailedPods", decision.reason, cost=int(decision.charge), free=not decision.charge
        )
    if decision.scope is Scope.PODS:
        return Step(record=_replaced(turn, decision), deadlines=_next(turn, decision))
    lost = tuple(s for s in turn.record.slots if s.lost_clock is not None)
    if lost:
        return _unanswered(turn, f"{healing.describe_lost(turn.record, lost)}; {decision.reason}")
    found = turn.record.find(ConditionType.UNHEALTHY)
    record = turn.record
    if found is not None and found.value and found.reason == "FoundFailedPods":
        record = record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False)
    return Step(record=record, deadlines=_next(turn, decision))


def _process_level(turn: Turn, faults: tuple[Fault, ...], state: State) -> tuple[Turn, Scheduling]:
    """Let process-level recovery have its time; return the settings as the scheduler is to read them.

    While a replaced pod is awaited the other processes go on (the world shrinks and grows by itself). When no strategy that is
    configured and possible waits any longer, recovery is paused: then the scheduler may go up to the whole job.
    """
    settings = _settings(turn)
    if not settings.recover_strategy or not scheduling.admission(settings).allowed:
        return turn, settings
    if not faults and not state.replaced:
        return turn.with_record(clocks.stop(turn.record, _WAIT)), settings
    record = clocks.run(turn.record, _WAIT)
    choice = _strategy(turn, settings, faults, state, waited=clocks.spent(record, _WAIT))
    if choice.strategy in (Strategy.RECOVER, Strategy.ELASTIC_TRAINING) and not choice.pause:
        return turn.with_record(record), settings
    return turn.with_record(record), dataclasses.replace(settings, process_recover="pause")


def _settings(turn: Turn) -> Scheduling:
    """Return the settings in force: an entry of graceful fault tolerance in the reset file counts like the job's own word."""
    settings = turn.policy.scheduling or Scheduling()
    told = turn.status is not None and turn.status.tolerance
    return dataclasses.replace(settings, graceful_tolerance=True) if told else settings


def _strategy(turn: Turn, settings: Scheduling, faults: tuple[Fault, ...], state: State, *, waited: float) -> Choice:
    refused = scheduling.admission(settings).refused
    wanted = [word for word in settings.recover_strategy if word not in {s.value for s in refused}]
    shrinks = turn.policy.min_nodes < turn.policy.max_nodes
    able = (Ability.EXIT, Ability.RECOVER, *((Ability.DOWNGRADE, Ability.UPGRADE) if shrinks else ()))
    hit = {f.node for f in faults} | state.replaced
    situation = Situation(master_faulty=_MASTER in hit, rescheduling=True, waited=waited, elastic_wait=settings.elastic_wait)
    if waited >= settings.wait_reschedule_timeout:
        return after_failure(wanted, able, Strategy.RECOVER, Failure.SCHEDULE, situation)
    ordinary = tuple(RankFault(type=FaultType.ORDINARY, rank=node) for node in sorted(hit))
    return resolve(wanted, able, ordinary, situation)


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
    lost = [slot for slot in record.slots if slot.node in decision.nodes and slot.lost_clock is not None]
    record = healing.replace_nodes(record, lost)
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
        waits = Deadline(at=at, clock="failure", then="the job fails: nobody answers the fault")
        # Settled: a job with a lost node is not ready either, and that finding would be another incident on every turn.
        return Step(record=turn.record, deadlines=(waits,), settled=True)
    return endings.fail(turn, "FaultUnhandled", why)


def _next(turn: Turn, decision: Decision) -> tuple[Deadline, ...]:
    settings = turn.policy.scheduling or Scheduling()
    waits = over(turn.record, _WAIT, settings.wait_reschedule_timeout, "the next strategy is taken")
    checks = decision.look_at is not None and decision.look_at > turn.record.clock
    rounds = Deadline(at=decision.look_at or 0.0, clock=_ROUNDS, then="the replaced pods are looked at again")
    return (*((rounds,) if checks else ()), *((waits,) if waits is not None else ()))
