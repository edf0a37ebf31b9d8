"""The supervisor's part of the profile `mindcluster`: apply the decisions of `scheduling.decide` to the job. Pure.

A decision becomes a reset of the job, the replacement of single nodes, or nothing. A fault without an answer ends the job after
the failure grace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.compat.mindcluster import scheduling
from rallypoint.compat.mindcluster.scheduling import Decision, Fault, FaultReason, Pending, Scope, State
from rallypoint.compat.mindcluster.strategy import (
    Ability,
    Choice,
    Failure,
    FaultType,
    Situation,
    Strategy,
    after_failure,
    resolve,
)
from rallypoint.compat.mindcluster.strategy import Fault as RankFault
from rallypoint.supervision import clocks, endings, healing
from rallypoint.supervision.charges import charged
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import ConditionType, JobRecord, Slot
from rallypoint.supervision.turn import Step, Turn, over, since
from rallypoint.wire.incident import DUMP_TIMEOUT, Cause, FaultKind, Incident, Rung
from rallypoint.wire.plan import Scheduling
from rallypoint.wire.status import NODE_LOST, Verdict

__all__ = ["answer_losses", "answer_verdict", "forceful_grace"]

_ROUNDS, _WAIT, _DUMP = "pending-rounds", "wait-reschedule", "last-checkpoint"

#: Seconds that the coordinator has to begin a last checkpoint after a loss, or to say that there is nothing to write.
_NOTICE = 30.0

#: The slot whose pod holds rank 0.
_MASTER = 0

_OUTSIDE = frozenset({FaultKind.NODE_LOST, FaultKind.EVICTED, FaultKind.PREEMPTED, FaultKind.DELETED, FaultKind.FLAGGED})


def answer_losses(turn: Turn) -> Step:
    """Answer the faults of this turn, and apply what time alone changes."""
    state, faults = _state(turn), tuple(_faults(turn))
    own = _settings(turn)
    turn, settings = _process_level(turn, own, faults, state)
    decision = _decide(turn, settings, faults, state)
    turn = turn.with_record(_remember(turn.record, decision.pending))
    saving = _last_checkpoint(turn, own, decision)
    if saving is not None:
        return saving
    if decision.scope is Scope.JOB:
        return endings.reset_or_fail(
            turn, "FoundFailedPods", decision.reason, cost=int(decision.charge), free=not decision.charge
        )
    if decision.scope is Scope.PODS:
        return Step(record=_replaced(turn, decision), deadlines=_next(turn, decision))
    lost = _lost(turn)
    if lost and not _goes_on_without(turn, own, lost):
        return _unanswered(turn, f"{healing.describe_lost(turn.record, lost)}; {decision.reason}")
    found = turn.record.find(ConditionType.UNHEALTHY)
    record = turn.record
    if found is not None and found.value and found.reason == "FoundFailedPods":
        record = record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False)
    return Step(record=record, deadlines=_next(turn, decision))


def _decide(turn: Turn, settings: Scheduling, faults: tuple[Fault, ...], state: State) -> Decision:
    limits = {"backoff_limit": settings.backoff_limit, "retry_limit": turn.policy.retry_limit}
    return scheduling.decide(settings, faults, state, turn.record.clock, **limits)


def forceful_grace(policy: Policy) -> float:
    """Return the seconds after which a deletion is forced; negative forces it at once."""
    settings = policy.scheduling or Scheduling()
    return -1.0 if settings.fault_scheduling == "force" else settings.grace_over_time


def answer_verdict(turn: Turn, verdict: Verdict) -> Step:
    """Answer the verdict of a coordinator that ended its attempt as failed.

    The scheduler's rules charge the verdict for a lost node; every other verdict costs a retry. The backoff limit bounds both.
    """
    settings, state = _settings(turn), _state(turn)
    cost, free, reason = 1, False, ""
    if verdict.reason == NODE_LOST:
        # The coordinator may know of the loss before we see it: then nothing tells of a container that ended by itself.
        faults = tuple(_faults(turn)) or (Fault(node=_MASTER, reason=FaultReason.LOST),)
        decision = _decide(turn, settings, faults, dataclasses.replace(state, replaced=frozenset()))
        cost, free = int(decision.charge), not decision.charge
        reason = decision.reason if decision.scope is Scope.NONE else ""
    elif 0 < settings.backoff_limit <= state.restarts:
        reason = f"{state.restarts} restarts reach the backoff limit of {settings.backoff_limit}"
    message = f"{verdict.message}; {reason}" if reason else verdict.message
    told = dataclasses.replace(verdict, message=message)
    return endings.reset_or_fail(turn, "FailedComponent", message, verdict=told, final=bool(reason), cost=cost, free=free)


def _lost(turn: Turn) -> tuple[Slot, ...]:
    return tuple(slot for slot in turn.record.slots if slot.lost_clock is not None)


def _goes_on_without(turn: Turn, settings: Scheduling, lost: tuple[Slot, ...]) -> bool:
    """Return whether elastic-training answers the loss of nodes that the scheduler leaves alone."""
    if Strategy.ELASTIC_TRAINING not in scheduling.strategies(settings) or any(slot.node == _MASTER for slot in lost):
        return False
    return len(turn.record.slots) - len(lost) >= turn.policy.min_nodes


def _last_checkpoint(turn: Turn, settings: Scheduling, decision: Decision) -> Step | None:
    """Return a turn that waits, where what follows would delete the nodes that a last checkpoint can be made of; else None.

    The coordinator begins it (rung `dump` of the incident) or has nothing to write (rung `exit`). It has `_NOTICE` seconds to
    report which; what it has begun is over within `DUMP_TIMEOUT`, and ends with a verdict.
    """
    lost = {(slot.node, slot.incarnation) for slot in _lost(turn)}
    ends = decision.scope is Scope.JOB or (decision.scope is Scope.NONE and bool(lost))
    if not ends or not turn.census.running or Strategy.DUMP not in scheduling.strategies(settings):
        return None
    told = () if turn.status is None else turn.status.incidents
    # The coordinator reports a lost node without a round, and one that leaves (a drained pod) with the round that it left.
    rungs = {i.rung for i in told if i.id.attempt == turn.record.attempt and (i.id.node, i.id.sequence) in lost}
    if Rung.EXIT in rungs and Rung.DUMP not in rungs:
        return None
    record = clocks.run(turn.record, _DUMP)
    limit = DUMP_TIMEOUT + _NOTICE if Rung.DUMP in rungs else _NOTICE
    waits = over(record, _DUMP, limit, "the remaining nodes are deleted without a last checkpoint")
    return None if waits is None else Step(record=record, deadlines=(waits,), settled=True)


def _process_level(turn: Turn, settings: Scheduling, faults: tuple[Fault, ...], state: State) -> tuple[Turn, Scheduling]:
    """Let process-level recovery have its time; return the settings as the scheduler is to read them.

    While a replaced pod is awaited the other processes go on (the world shrinks and grows by itself). When no strategy that is
    configured and possible waits any longer, recovery is paused: then the scheduler may go up to the whole job.
    """
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
    situation = Situation(
        master_faulty=_MASTER in hit,
        rescheduling=scheduling.may_replace(settings),
        waited=waited,
        elastic_wait=settings.elastic_wait,
    )
    if waited >= settings.wait_reschedule_timeout:
        return after_failure(wanted, able, Strategy.RECOVER, Failure.SCHEDULE, situation)
    ordinary = tuple(RankFault(type=FaultType.ORDINARY, rank=node) for node in sorted(hit))
    return resolve(wanted, able, ordinary, situation)


def _faults(turn: Turn) -> Iterable[Fault]:
    """Nodes that are lost and not replaced, by why they were lost, and those whose host was flagged while they run."""
    # Those of a round are not the loss of the pod, which may have told the coordinator before that its agent leaves.
    told = [i for i in turn.record.incidents if i.id.attempt == turn.record.attempt]
    reasons = {(i.id.node, i.id.sequence): i for i in told if i.id.round == 0}
    # A pod that was asked to end is no container fault, whether the supervisor or the coordinator sees its end first.
    left = {(i.id.node, i.id.sequence) for i in told if i.cause is Cause.SCALE and i.rung in (Rung.DUMP, Rung.EXIT)}
    for slot in turn.record.slots:
        if slot.lost_clock is not None:
            own = (slot.node, slot.incarnation)
            yield Fault(node=slot.node, reason=FaultReason.LOST if own in left else _reason(reasons.get(own)))
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
    return State(charged=len(record.charges), restarts=record.restarts, replaced=replaced, pending=pending)


def _remember(record: JobRecord, pending: Pending) -> JobRecord:
    """Keep the count of checks in the record's timers: `spent` are checks here, `since` is the last one."""
    if pending == Pending():
        return clocks.stop(record, _ROUNDS)
    return clocks.put(record, _ROUNDS, spent=float(pending.checks), since=pending.at)


def _replaced(turn: Turn, decision: Decision) -> JobRecord:
    """Replace the faulty nodes alone; nodes that still run on a flagged host are ended as the settings say."""
    record = charged(turn.record, turn.policy) if decision.charge else turn.record
    record = dataclasses.replace(record, restarts=record.restarts + 1)
    flagged = {n.node: n for n in turn.census.flagged}
    record = healing.evacuate(record, (flagged[node] for node in decision.nodes if node in flagged))
    lost = [slot for slot in record.slots if slot.node in decision.nodes and slot.lost_clock is not None]
    record = healing.replace_nodes(record, lost)
    if not decision.charge:
        record = _free(record, {slot.node: slot.incarnation for slot in turn.record.slots if slot.node in decision.nodes})
    return record.with_history("pods-rescheduled", decision.reason)


def _free(record: JobRecord, lost: dict[int, int]) -> JobRecord:
    """Let hardware faults cost no budget, however they were first reported; `lost` is the lost incarnation of each node."""
    freed = tuple(
        dataclasses.replace(i, cause=Cause.EVACUATION)
        if i.cause is Cause.NODE and i.id.attempt == record.attempt and lost.get(i.id.node) == i.id.sequence
        else i
        for i in record.incidents
    )
    return dataclasses.replace(record, incidents=freed)


def _unanswered(turn: Turn, why: str) -> Step:
    """Nobody answers this fault: after the failure grace the job has failed."""
    turn = turn.with_record(turn.record.unhealthy("FoundFailedPods"))
    at = since(turn.record, ConditionType.UNHEALTHY, value=True) + turn.policy.failure_grace
    if turn.record.clock < at:
        waits = Deadline(at=at, clock="failure", then="the job fails: no recovery strategy handles the fault")
        # Settled: a job with a lost node is not ready either, and that finding would be another incident on every turn.
        return Step(record=turn.record, deadlines=(waits,), settled=True)
    return endings.fail(turn, "FaultUnhandled", why)


def _next(turn: Turn, decision: Decision) -> tuple[Deadline, ...]:
    settings = turn.policy.scheduling or Scheduling()
    waits = over(turn.record, _WAIT, settings.wait_reschedule_timeout, "the supervisor tries the next strategy")
    checks = decision.look_at is not None and decision.look_at > turn.record.clock
    rounds = Deadline(at=decision.look_at or 0.0, clock=_ROUNDS, then="the supervisor checks the replaced pods again")
    return (*((rounds,) if checks else ()), *((waits,) if waits is not None else ()))
