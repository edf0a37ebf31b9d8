"""What every turn of the core must keep, as functions over its arguments and its decision. Pure.

Tests run them over random policies and traces. Each returns sentences about what
was broken, so that whoever reads one knows what to look at; an empty tuple says that all is well.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.supervision import census, charges
from rallypoint.supervision.actions import CreateComponents, CreateCoordinator, CreateNode, Purge
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import TRANSITIONS, Decision
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.plan import Refill

__all__ = ["awaited", "broken", "present"]

_CREATES = (CreateComponents, CreateCoordinator, CreateNode)

#: Phases in which something may be created.
_MAKING = (Phase.RESUMING, Phase.RUNNING)

_NAMES = {phase.value.lower(): phase for phase in Phase if phase is not Phase.EMPTY}


def broken(before: JobRecord, seen: Observation, policy: Policy, now: float, decision: Decision) -> tuple[str, ...]:
    """Return what a turn has broken of what it must keep; `before`, `seen`, `policy` and `now` are its arguments."""
    return (
        *_phases(before, decision.record),
        *_budgets(before, decision.record, policy),
        *_attempts(before, seen, policy, decision),
        *_ends(before, seen, policy, decision),
        *_waits(seen, policy, now, decision),
    )


def present(seen: Observation, policy: Policy) -> bool:
    """Return whether anything of the job still holds resources."""
    wrapped = policy.wrapped and seen.components.deployed + seen.components.deleting > 0
    return seen.present or wrapped


def awaited(seen: Observation, policy: Policy, decision: Decision) -> str:
    """Return the event that a job waits for after this turn; "" if none can occur, so that the job would never end."""
    record = decision.record
    counted = census.take(record, seen, policy)
    reasons = (
        (decision.done, "nothing: the job has ended"),
        (bool(decision.deadlines), "a clock"),
        (bool(decision.actions), "the backend"),
        (record.phase is Phase.SUSPENDED and (record.suspend or seen.suspend), "the user or queue that suspended the job"),
        (record.phase is Phase.RUNNING and record.condition(ConditionType.PODS_READY), "the training"),
        (record.phase in _MAKING and counted.pending > 0, "quota, or the scheduler"),
    )
    return next((what for so, what in reasons if so), "")


def _phases(before: JobRecord, after: JobRecord) -> Iterator[str]:
    """Each phase of the turn follows the one before it by the table."""
    phase = before.phase
    fresh = after.history[_kept(before, after) :]
    for entered in (_NAMES[event.kind] for event in fresh if event.kind in _NAMES):
        if entered not in TRANSITIONS[phase]:
            yield f"{phase.value or 'Empty'} became {entered.value}, against the table"
        phase = entered
    if phase is not after.phase:
        yield f"the history ends in {phase.value or 'Empty'}, but the phase is {after.phase.value or 'Empty'}"


def _kept(before: JobRecord, after: JobRecord) -> int:
    """Return how many lines of the old history are at the beginning of the new one."""
    old, new = before.history, after.history
    if new[: len(old)] == old:
        return len(old)
    return next(len(old) - gone for gone in range(len(old) + 1) if new[: len(old) - gone] == old[gone:])


def _budgets(before: JobRecord, after: JobRecord, policy: Policy) -> Iterator[str]:
    """No more resets are paid for than the limit allows; without a refill there are no more in all."""
    counted, limit = len(charges.counted(after, policy)), max(0, policy.retry_limit)
    if counted > max(limit, len(before.charges)):
        yield f"{counted} resets are charged, more than retry_limit {limit}"
    if policy.reset_refill == Refill() and after.retries > max(limit, before.retries):
        yield f"{after.retries} retries, more than retry_limit {limit}"
    if after.retries < before.retries:
        yield f"one turn took retries from {before.retries} back to {after.retries}"


def _attempts(before: JobRecord, seen: Observation, policy: Policy, decision: Decision) -> Iterator[str]:
    """An attempt begins only when nothing is left of those before it, and things are made for it alone."""
    after = decision.record
    if after.attempt not in (before.attempt, before.attempt + 1):
        yield f"one turn took attempts from {before.attempt} to {after.attempt}"
    if after.attempt > before.attempt and present(seen, policy):
        yield f"attempt {after.attempt} begins while something of an earlier one is there"
    if after.term < before.term:
        yield f"the term went back from {before.term} to {after.term}"
    for action in decision.actions:
        if isinstance(action, _CREATES) and (action.attempt != after.attempt or after.phase not in _MAKING):
            yield f"{action} in {after.phase.value or 'Empty'}, attempt {after.attempt}"


def _ends(before: JobRecord, seen: Observation, policy: Policy, decision: Decision) -> Iterator[str]:
    """A job is released, or its record removed, only when zero was seen; what has ended has a verdict."""
    after, there = decision.record, present(seen, policy)
    if after.released and not before.released and there:
        yield "released before zero was seen"
    purged = any(isinstance(action, Purge) for action in decision.actions)
    if purged and (there or after.phase is not Phase.TERMINATING):
        yield f"purged in {after.phase.value or 'Empty'} before zero was seen"
    if decision.done and there:
        yield "done before zero was seen"
    if after.finished and after.verdict is None:
        yield f"{after.phase.value} without a verdict"


def _waits(seen: Observation, policy: Policy, now: float, decision: Decision) -> Iterator[str]:
    """A job that is not over has a clock that ends its wait, or waits for something outside; its clocks are in order."""
    if not awaited(seen, policy, decision):
        yield f"it waits for ever in {decision.record.phase.value or 'Empty'}"
    if list(decision.deadlines) != sorted(decision.deadlines):
        yield "the deadlines are not in order"
    if bool(decision.deadlines) != (decision.wake_at is not None):
        yield "it is not woken for its next deadline"
    if decision.wake_at is not None and not now <= decision.wake_at < float("inf"):
        yield f"it is woken at {decision.wake_at}, which is not after {now} or never"
