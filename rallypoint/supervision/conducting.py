"""One turn of a job with roles: its record, what is seen of its units, and what follows. Pure.

The conductor (`conductor.py`) decides; here its decisions become the phases, conditions, incidents and history that every job
has, and the wishes in the record (deletion, suspension, another attempt) reach the conductor. So all that reads a record, or
asks something of a job, does the same with a job of several roles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.supervision import conductor, folding, role_records
from rallypoint.supervision.record import Attempt, ConditionType, JobRecord, Phase
from rallypoint.supervision.role_records import (
    ConductorPolicy,
    ConductorRecord,
    Level,
    Outcome,
    StartUnit,
    Step,
    StopUnit,
    UnitSeen,
    UnitState,
)
from rallypoint.supervision.verdicts import End, judge
from rallypoint.wire import status
from rallypoint.wire.incident import Answer, Cause, Culprit, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.plan import Plan

__all__ = ["RolesDecision", "conduct_job", "final", "taken_over"]

#: Longest time that one turn adds to the job's clock, in seconds.
_MAX_GAP = 30.0

#: Where the ids of incidents of units begin: those of resets and of coordinators are below.
_FIRST = 1_000_000

_RUNGS = {
    Level.INSTANCE: Rung.RECOVER_IN_PLACE,
    Level.ROLE: Rung.RESTART_WORKERS,
    Level.JOB: Rung.RESET,
    Level.NONE: Rung.EXIT,
}
_ANSWERS = {
    Level.INSTANCE: "the instance is started again",
    Level.ROLE: "the role is started again",
    Level.JOB: "the job is reset",
    Level.NONE: "the job fails",
}


#: Exit codes above are those of signals.
_SIGNALLED = 128


@dataclass(frozen=True, kw_only=True)
class RolesDecision:
    """The record to save, the actions to perform then, and when to decide again if nothing happens.

    Attributes:
        at_rest: no unit is left of a job that is over or suspended; once nothing that serves units is left either,
            `released` is its record.
    """

    record: JobRecord
    actions: tuple[StartUnit | StopUnit, ...] = ()
    wake_at: float | None = None
    at_rest: bool = False
    released: JobRecord | None = None


def conduct_job(record: JobRecord, seen: Iterable[UnitSeen], policy: ConductorPolicy, now: float) -> RolesDecision:
    """Decide one turn; `now` is seconds since the epoch, read before the units were observed."""
    units, before = tuple(seen), record
    elapsed = min(max(0.0, now - record.last_now), _MAX_GAP)
    record = record.ticked(clock=record.clock + elapsed, now=now)
    if record.conductor is None:
        if record.suspend and not record.deletion:
            if record.phase is not Phase.SUSPENDED:
                record = _entered(record, Phase.SUSPENDED, "it was submitted as suspended")
            return RolesDecision(record=record)
        record = _begun(record, policy)
    asked = _asked(record, policy, now)
    decision = conductor.conduct(asked, units, policy, now)
    record = _with_steps(record, decision.record)
    record = _with_phase(record, decision.record, policy)
    record = _with_readiness(_with_results(record, units, policy), units, policy)
    record = dataclasses.replace(record, conductor=decision.record)
    at_rest = decision.record.finished or decision.record.phase is role_records.Phase.SUSPENDED
    return RolesDecision(
        record=folding.fold(record, before),
        actions=decision.actions,
        wake_at=decision.wake_at,
        at_rest=at_rest,
        released=_released(record) if at_rest else None,
    )


def final(unit: UnitSeen, plan: Plan) -> str:
    """Return why an instance that failed must not be started again, by the rules of the job for exits; "" where it may.

    Only what the job says counts (`fault_tolerance`), not the table of causes.
    """
    code = unit.exit_code
    told = plan.failures.end_rules or plan.failures.terminal_exit_codes or plan.failures.retryable_exit_codes
    if unit.state is not UnitState.FAILED or code is None or not told:
        return ""
    end = End(codes=(code if code >= 0 else _SIGNALLED - code,), error=unit.reason)
    rules, terminal, retryable = plan.failures.end_rules, plan.failures.terminal_exit_codes, plan.failures.retryable_exit_codes
    judged = judge(end, rules=rules, terminal=terminal, retryable=retryable)
    decided = any(judged.rule.startswith(word) for word in ("rule ", "exit code "))
    return judged.rule if decided and judged.answer is Answer.FAIL_NOW else ""


def taken_over(record: JobRecord, policy: ConductorPolicy, now: float) -> JobRecord:
    """Return the record of a job whose supervisor was lost: its successor is charged to `master_max_restart`."""
    if record.conductor is None:
        return record
    return dataclasses.replace(record, conductor=conductor.take_over(record.conductor, policy, now))


def _begun(record: JobRecord, policy: ConductorPolicy) -> JobRecord:
    attempt = record.attempt + 1
    record = dataclasses.replace(record, conductor=conductor.new_record(policy, attempt=attempt), renew=False)
    return _deployed(record, attempt, policy)


def _deployed(record: JobRecord, attempt: int, policy: ConductorPolicy) -> JobRecord:
    """Begin an attempt."""
    started = Attempt(number=attempt, owner=record.owner, started_at=record.last_now)
    record = dataclasses.replace(record, attempt=attempt, attempts=(*record.attempts, started), result=None)
    for kind, value in ((ConditionType.QUOTA_RESERVED, True), (ConditionType.RESOURCES_DEPLOYED, True)):
        record = record.with_condition(kind, "Resuming", value=value)
    for kind in (ConditionType.PODS_READY, ConditionType.UNHEALTHY):
        record = record.with_condition(kind, "Resuming", value=False)
    if record.condition(ConditionType.DELETING_RESOURCES):
        record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionComplete", value=False)
    roles = ", ".join(role.name if role.elastic else f"{role.name} x {role.units}" for role in policy.roles)
    return _entered(record, Phase.RUNNING, f"attempt {attempt}: {roles}")


def _asked(record: JobRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the conductor's record with what the job's record asks for."""
    found = record.conductor
    if found is None:
        raise AssertionError(f"job {record.name}: the record has no field conductor, which a job with several roles needs")
    if record.deletion:
        return conductor.delete(found, policy, now)
    if record.renew:
        found = conductor.renew(found, policy, now)
    return conductor.suspend(found, policy, now) if record.suspend else conductor.resume(found)


def _with_steps(record: JobRecord, new: ConductorRecord) -> JobRecord:
    """Tell the failures that this turn has answered, in their order."""
    old = set() if record.conductor is None else set(record.conductor.history)
    for step in new.history:
        if step in old:
            continue
        told = f"{step.reason}; {_ANSWERS[step.level]}"
        record = record.with_history("not-restarted" if step.level is Level.NONE else "restarted", told)
        record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, (_incident(record, step),)))
        if step.level is Level.JOB:
            record = dataclasses.replace(
                record, retries=record.retries + 1, restarts=record.restarts + 1, charges=(*record.charges, record.clock)
            )
    return record


def _incident(record: JobRecord, step: Step) -> Incident:
    known = [incident.id.sequence for incident in record.incidents if incident.id.sequence >= _FIRST]
    number = max([*known, *(folded.sequence for folded in record.folded), _FIRST - 1]) + 1
    return Incident(
        id=IncidentId(attempt=step.attempt, round=0, sequence=number),
        cause=Cause.NODE if step.lost else Cause.PROCESS,
        rung=_RUNGS[step.level],
        reason=step.reason,
        culprit=_culprit(step),
        detected_at=step.at,
        rule=step.level.value,
        clock=record.clock,
    )


def _culprit(step: Step) -> Culprit:
    code = step.exit_code
    killed = code is not None and code < 0
    return Culprit(
        rank=step.index,
        exit_code=None if killed else code,
        signal=-code if code is not None and killed else None,
        error=step.reason,
        at=step.at,
    )


def _with_phase(record: JobRecord, new: ConductorRecord, policy: ConductorPolicy) -> JobRecord:
    if new.outcome is Outcome.DELETED:
        return record if record.phase is Phase.TERMINATING else _leaving(record, Phase.TERMINATING, "deletion was requested")
    if new.outcome is not None:
        return _ended(record, new)
    if new.phase in {role_records.Phase.SUSPENDING, role_records.Phase.SUSPENDED}:
        return _suspended(record, new)
    if new.phase is role_records.Phase.RESETTING:
        return record if record.phase is Phase.RESETTING else _leaving(record, Phase.RESETTING, new.reason)
    if new.attempt != record.attempt:
        return _deployed(dataclasses.replace(record, renew=False), new.attempt, policy)
    if record.phase is Phase.SUSPENDED:
        return _entered(_with_all(record, "Resuming", value=True), Phase.RUNNING, "the job was resumed")
    return record


def _ended(record: JobRecord, new: ConductorRecord) -> JobRecord:
    if record.finished:
        return record
    well = new.outcome is Outcome.SUCCEEDED
    outcome = status.Outcome.SUCCEEDED if well else status.Outcome.FAILED
    verdict = status.Verdict(outcome=outcome, reason="Completed" if well else "RoleFailed", message=new.reason)
    record = dataclasses.replace(record, verdict=verdict)
    if not well:
        record = record.unhealthy("RoleFailed")
    return _leaving(record, Phase.SUCCEEDED if well else Phase.FAILED, new.reason)


def _suspended(record: JobRecord, new: ConductorRecord) -> JobRecord:
    if new.phase is role_records.Phase.SUSPENDING:
        return record if record.phase is Phase.SUSPENDING else _leaving(record, Phase.SUSPENDING, "the job was suspended")
    if record.phase is Phase.SUSPENDED:
        return record
    return _entered(_with_all(record, "Suspended", value=False), Phase.SUSPENDED, "no unit is left")


def _with_all(record: JobRecord, why: str, *, value: bool) -> JobRecord:
    for kind in (ConditionType.QUOTA_RESERVED, ConditionType.RESOURCES_DEPLOYED):
        record = record.with_condition(kind, why, value=value)
    record = record.with_condition(ConditionType.PODS_READY, why, value=False)
    return record.with_condition(ConditionType.DELETING_RESOURCES, why, value=False)


def _leaving(record: JobRecord, phase: Phase, why: str) -> JobRecord:
    """Enter a phase in which everything of the attempt is ended."""
    if record.attempts and record.attempts[-1].ended_at is None:
        *earlier, last = record.attempts
        closed = dataclasses.replace(last, ended_at=record.last_now, reason=phase.value, message=why)
        record = dataclasses.replace(record, attempts=(*earlier, closed))
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    return _entered(record.with_condition(ConditionType.PODS_READY, phase.value, value=False), phase, why)


def _entered(record: JobRecord, phase: Phase, why: str) -> JobRecord:
    return dataclasses.replace(record, phase=phase).with_history(phase.value.lower(), why)


def _with_readiness(record: JobRecord, units: tuple[UnitSeen, ...], policy: ConductorPolicy) -> JobRecord:
    """Note whether all units that are wanted run, for the first time of an attempt, too."""
    if record.phase is not Phase.RUNNING or record.conductor is None:
        return record
    running = sum(unit.present and unit.state is UnitState.RUNNING for unit in units)
    done = sum(len(role.done) for role in record.conductor.roles)
    ready = running + done >= sum(role.units for role in policy.roles)
    record = record.with_condition(
        ConditionType.PODS_READY, "SufficientPodsReady" if ready else "InsufficientPodsReady", value=ready
    )
    if ready:
        record = _healed(record)
    if ready and record.attempts[-1].ready_at is None:
        *earlier, last = record.attempts
        record = dataclasses.replace(record, attempts=(*earlier, dataclasses.replace(last, ready_at=record.last_now)))
    return record


def _with_results(record: JobRecord, units: tuple[UnitSeen, ...], policy: ConductorPolicy) -> JobRecord:
    """Keep what drivers have left as their result, by role: of a simple role its first instance speaks."""
    drivers = {role.name for role in policy.roles if role.driver}
    found = {
        unit.key.role: unit.result
        for unit in units
        if unit.state is UnitState.SUCCEEDED and unit.key.index == 0 and unit.key.role in drivers
        if unit.result is not None and unit.key.attempt == record.attempt
    }
    known = record.result if isinstance(record.result, dict) else {}
    return dataclasses.replace(record, result={**known, **found}) if {**known, **found} != known else record


def _healed(record: JobRecord) -> JobRecord:
    """Note that all units run again."""
    if all(incident.healed_at is not None for incident in record.incidents):
        return record
    now = record.last_now
    healed = tuple(i if i.healed_at is not None else dataclasses.replace(i, healed_at=now) for i in record.incidents)
    return dataclasses.replace(record, incidents=healed)


def _released(record: JobRecord) -> JobRecord:
    why = record.phase.value
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionComplete", value=False)
    record = record.with_condition(ConditionType.RESOURCES_DEPLOYED, why, value=False)
    return record.with_condition(ConditionType.QUOTA_RESERVED, why, value=False)
