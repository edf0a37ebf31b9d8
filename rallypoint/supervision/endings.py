"""How attempts and jobs end: resets and what they cost, failure, success, suspension, deletion. Pure, like `reconcile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.supervision import clocks, wrapped
from rallypoint.supervision.actions import Action, Purge, RemoveComponents, RemoveCoordinator, RemoveNode
from rallypoint.supervision.charges import after_fault, charged, counted, without_progress
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.observation import NodeSeen
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.profile import rules_of
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.supervision.turn import Step, Turn, enter, over, since
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.status import Outcome, Progress, Verdict

__all__ = [
    "all_gone",
    "delete",
    "fail",
    "failed",
    "judge_pending",
    "renew",
    "reset_or_fail",
    "succeed",
    "succeeded",
    "suspend",
    "suspending",
    "sweep",
    "swept",
    "terminating",
]

# --- An attempt is over ----------------------------------------------------------------------------------------------------


def reset_or_fail(
    turn: Turn,
    reason: str,
    message: str,
    *,
    verdict: Verdict | None = None,
    final: bool = False,
    cost: int = 1,
    free: bool = False,
) -> Step:
    """Reset the job, or fail it: `final` ends allow no retry, and neither does a spent budget, whatever this reset costs.

    A reset of `cost` 0 (an evacuation) leaves the budget as it is; one that is `free` does not even ask for it.
    """
    record, policy = turn.record.unhealthy(reason), turn.policy
    turn = turn.with_record(record)
    if final or (not free and len(counted(record, policy)) >= policy.retry_limit):
        return fail(turn, reason, message, verdict)
    record = _closed(turn, reason, message)
    barren = without_progress(record.attempts)
    if policy.no_progress_limit and barren >= policy.no_progress_limit:
        why = f"{barren} attempts in a row made no new progress; last error: {message}"
        return fail(turn, "NoProgress", why)
    record = dataclasses.replace(record, restarts=record.restarts + 1)
    if cost:
        record = charged(record, policy)
        record = after_fault(record)
    if not (cost and policy.wrapped and wrapped.failure(record) is not None):  # the reset answers that incident
        record = _with_reset(record, reason, message, cost=cost)
    record = record.with_condition(ConditionType.PODS_READY, "Resetting", value=False)
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    retry = f"retry {len(record.charges)} of {policy.retry_limit}" if cost else "a reset that is not charged"
    return Step(record=enter(record, Phase.RESETTING, f"{retry}: {message}"))


def _with_reset(record: JobRecord, reason: str, message: str, *, cost: int) -> JobRecord:
    incident = Incident(
        # Its sequence is none that a lost coordinator's term can be: the two would be taken for one.
        id=IncidentId(attempt=record.attempt, round=0, sequence=0),
        cause=Cause.JOB if cost else Cause.EVACUATION,
        rung=Rung.RESET,
        reason=message,
        detected_at=record.last_now,
        last_step=record.attempts[-1].progress.step,
        rule=reason,
        clock=record.clock,
    )
    return dataclasses.replace(record, incidents=merge_incidents(record.incidents, (incident,)))


def fail(turn: Turn, reason: str, message: str, verdict: Verdict | None = None) -> Step:
    """End the job for good. What it holds is deleted, at once or after the delay for debugging."""
    record = _closed(turn, reason, message)
    if verdict is None:
        verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message)
    record = dataclasses.replace(record, verdict=verdict).unhealthy(reason)
    if turn.policy.deletion_on_failure_grace > 0:
        record = clocks.run(clocks.stop(record, "deletion-on-failure"), "deletion-on-failure")
    return Step(record=enter(record, Phase.FAILED, message))


def succeed(turn: Turn, verdict: Verdict) -> Step:
    """End the job well: its quota is free at once."""
    record = _closed(turn, "Completed", verdict.message)
    record = dataclasses.replace(record, verdict=verdict, result=None if turn.status is None else turn.status.result)
    record = record.with_condition(ConditionType.UNHEALTHY, "Completed", value=False)
    record = record.with_condition(ConditionType.QUOTA_RESERVED, "Succeeded", value=False)
    return Step(record=enter(record, Phase.SUCCEEDED, verdict.message))


def suspend(turn: Turn) -> Step:
    """Begin to take everything away; the attempt is over and has cost nothing."""
    return Step(record=suspending(_closed(turn, "Suspended", "the job was suspended")))


def renew(turn: Turn) -> Step:
    """End the attempt because its owner wants another: nothing of it may be left when that begins, and it costs nothing."""
    record = _closed(turn, "Renewed", "its owner restarted it")
    record = record.with_condition(ConditionType.PODS_READY, "Resetting", value=False)
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    return Step(record=enter(record, Phase.RESETTING, "its owner restarts it; not charged to a budget"))


def suspending(record: JobRecord) -> JobRecord:
    """Return the record of a job that is being suspended."""
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    return enter(record, Phase.SUSPENDING, "all objects are deleted")


def _closed(turn: Turn, reason: str, message: str) -> JobRecord:
    """End the attempt with what was reported last; an attempt that reported nothing leaves the job's progress as it was."""
    record, status = turn.record, turn.status
    told = Progress() if status is None else status.progress
    *earlier, last = record.attempts
    ended = dataclasses.replace(last, ended_at=record.last_now, reason=reason, message=message, progress=told)
    progress = record.progress if told.step is None else told
    return dataclasses.replace(record, attempts=(*earlier, ended), progress=progress)


# --- The phases at the end -------------------------------------------------------------------------------------------------


def succeeded(turn: Turn) -> Step:
    """The agents were told and end by themselves; whoever has not in time is ended, and what is left after the TTL goes."""
    if not turn.present:
        return Step(record=all_gone(turn.record, "Succeeded"), done=True)
    record, policy = turn.record, turn.policy
    at = since(record, ConditionType.QUOTA_RESERVED, value=False)
    expires = Deadline(at=at + policy.success_ttl, clock="success-ttl", then="the remaining objects are deleted")
    leaves = Deadline(at=at + policy.leave_grace, clock="exit", then="agents that still run are deleted")
    alive = not policy.wrapped and any(n.present and not n.ended for n in (*turn.seen.nodes, *turn.seen.coordinators))
    if record.clock >= expires.at or (alive and record.clock >= leaves.at):
        return delete(turn.with_record(_deleting(record)), spare_ended=record.clock < expires.at)
    return Step(record=record, deadlines=(expires, leaves) if alive else (expires,))


def failed(turn: Turn) -> Step:
    """What a failed job holds is kept for debugging as long as that was asked for, once, and then deleted."""
    record = turn.record
    if not turn.present:
        record = all_gone(record, "Failed").with_condition(ConditionType.QUOTA_RESERVED, "Failed", value=False)
        return Step(record=record, done=True)
    held = over(record, "deletion-on-failure", turn.policy.deletion_on_failure_grace, "all objects of the job are deleted")
    if held is not None and not turn.suspend:
        record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionPaused", value=False)
        return Step(record=record, deadlines=(held,))
    # Once it has begun it is finished: without the clock there is no way back.
    record = clocks.stop(record, "deletion-on-failure")
    return delete(turn.with_record(_deleting(record)))


def terminating(turn: Turn) -> Step:
    """Somebody deleted the job: everything goes, and then its record."""
    if turn.present:
        return delete(turn.with_record(_deleting(turn.record)))
    record = all_gone(turn.record, "Terminating").with_condition(ConditionType.QUOTA_RESERVED, "Terminating", value=False)
    return Step(record=record, actions=(Purge(),), done=True)


# --- Deletion --------------------------------------------------------------------------------------------------------------


def _deleting(record: JobRecord) -> JobRecord:
    return record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)


def all_gone(record: JobRecord, why: str) -> JobRecord:
    """Return the record of a job of which zero was seen."""
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionComplete", value=False)
    return record.with_condition(ConditionType.RESOURCES_DEPLOYED, why, value=False)


def sweep(turn: Turn) -> Step:
    """Remove what should not be there: what a supervisor made late that had slept since the attempt was over."""
    return delete(turn.with_record(_deleting(turn.record)))


def swept(record: JobRecord) -> JobRecord:
    """Return the record of a job of which nothing was left to sweep."""
    if not record.condition(ConditionType.DELETING_RESOURCES):
        return record
    return record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionComplete", value=False)


def delete(turn: Turn, *, spare_ended: bool = False) -> Step:
    """Remove whatever is there of any attempt; by force once the forceful grace is over, again and again until it is gone."""
    record, policy = turn.record, turn.policy
    forced_at = since(record, ConditionType.DELETING_RESOURCES, value=True) + forceful_grace(policy)
    force = record.clock > forced_at
    remove = _of_components if policy.wrapped else _of_nodes
    actions = tuple(remove(turn, force=force, spare_ended=spare_ended))
    forced = Deadline(at=forced_at, clock="forceful-deletion", then="the remaining objects are deleted with force")
    return Step(record=record, actions=actions, deadlines=() if force else (forced,))


def forceful_grace(policy: Policy) -> float:
    """Return the seconds after which a deletion is forced; negative forces it at once."""
    rules = rules_of(policy.profile)
    return policy.forceful_deletion_grace if rules is None else rules.forceful_grace(policy)


def _of_nodes(turn: Turn, *, force: bool, spare_ended: bool) -> Iterable[Action]:
    def goes(seen: NodeSeen) -> bool:
        return seen.present and not (spare_ended and seen.ended)

    for n in filter(goes, turn.seen.nodes):
        yield RemoveNode(attempt=n.attempt, node=n.node, incarnation=n.incarnation, force=force or n.ended)
    for c in filter(goes, turn.seen.coordinators):
        yield RemoveCoordinator(attempt=c.attempt, term=c.incarnation, force=force or c.ended)


def _of_components(turn: Turn, *, force: bool, spare_ended: bool) -> Iterable[Action]:
    """Delete the components; their controller deletes the pods. By force: first pods that linger, then the components."""
    del spare_ended  # they go with their component
    pods = [n for n in turn.seen.nodes if n.present]
    components = turn.seen.components.deployed + turn.seen.components.deleting > 0
    if not force:
        if components:
            yield RemoveComponents()
        return
    for n in pods:
        yield RemoveNode(attempt=n.attempt, node=n.node, incarnation=n.incarnation, force=True)
    if components and not pods:
        yield RemoveComponents(force=True)


_DISABLED, _WARN, _NECESSARY, _ALL = -1, 0, 1, 2
_WARNING = "pending"


def judge_pending(turn: Turn) -> Step:
    """Judge the nodes that are pending."""
    strategy, timeout = turn.policy.pending_fail_strategy, turn.policy.pending_timeout
    if strategy == _DISABLED or timeout == 0 or turn.policy.wrapped:
        return Step(record=turn.record)
    if strategy == _NECESSARY:
        return _necessary(turn, timeout)
    oldest = turn.census.oldest_pending
    if oldest is None or (strategy == _WARN and _WARNING in turn.record.warned):
        return Step(record=turn.record)
    at = oldest + timeout
    if turn.record.clock < at:
        then = "the job fails (PendingTimeout)" if strategy == _ALL else "a warning; no further effect"
        return Step(record=turn.record, deadlines=(Deadline(at=at, clock="pending", then=then),))
    if strategy == _ALL:
        return _fail(turn, f"pending_fail_strategy {_ALL}: every node must run")
    record = dataclasses.replace(turn.record, warned=(*turn.record.warned, _WARNING))
    return Step(record=record.with_history("pending-timeout", f"{_what(turn)} for {timeout:g} s; no effect (strategy 0)"))


def _necessary(turn: Turn, timeout: float) -> Step:
    """The clock runs while too few nodes run and others are pending: a loss late in a run does not inherit an old wait."""
    census, record = turn.census, turn.record
    running = census.running + census.succeeded
    if census.oldest_pending is None or running >= turn.policy.min_nodes:
        return Step(record=clocks.stop(record, "pending"))
    record = clocks.run(record, "pending")
    left = over(record, "pending", timeout, "the job fails (PendingTimeout)")
    if left is not None:
        return Step(record=record, deadlines=(left,))
    why = f"pending_fail_strategy {_NECESSARY}: {running} of at least {turn.policy.min_nodes} nodes run"
    return _fail(turn.with_record(record), why)


def _fail(turn: Turn, why: str) -> Step:
    record = turn.record.unhealthy("PendingTimeout")
    message = f"{_what(turn)} for {turn.policy.pending_timeout:g} s (pending_timeout); {why}"
    return fail(turn.with_record(record), "PendingTimeout", message)


def _what(turn: Turn) -> str:
    waiting = [str(s.node) for s in turn.census.slots if s.pending_clock is not None]
    return f"node {waiting[0]} is pending" if len(waiting) == 1 else f"nodes {', '.join(waiting)} are pending"
