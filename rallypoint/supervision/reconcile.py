r"""The supervisor's state machine: what is true, and what should therefore be so.

Theory of operation
===================

Rule 1: everything that decides a phase lives in this file or in `healing.py` beside it. Nothing here reads a clock, a file or
the network; `now` is an argument, and the same arguments always give the same decision.

A turn is: load the record, read the clock, observe, `reconcile`, save the new record, and only then act. Because the record is
saved first, a supervisor that is killed at any point leaves a record that is at least as new as the world, and the next one
repeats the actions: they are computed afresh on each turn from (record, observation) and are emitted until they are seen to be
so. There are no events here, so none can be lost.

Time is the job's own clock (`JobRecord.clock`), which advances with the wall clock but never backwards, and by at most
`Policy.max_gap` between two turns: a laptop that slept a night, or an hour without any supervisor, expires no grace. `now` is
read before the observation is made, so a deadline only ever acts on what was seen after it.

Phases are AppWrapper's::

    Empty -> Resuming -> Running -> Succeeded
                ^  \\        |  \\
                |   \\       v   v
                +---- Resetting  Failed          any -> Terminating

The table `TRANSITIONS` below is the whole truth about which may follow which. In `Running` the checks are made in this order,
and the first that holds decides: the job failed inside; it succeeded; the coordinator is gone; nodes are gone; it is ready; it
is still warming up. An elastic job degrades before it resets: a lost node is replaced while the others go on, and only fewer
than `min_nodes` replaceable or living nodes, for longer than the failure grace, reset the job.

A reset deletes everything, sees that zero is left, pauses, and starts the next attempt with the next number; quota (the slot of
the job) is kept throughout. `retry_limit` resets make `retry_limit + 1` attempts at the most; the counter is never refilled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rallypoint.supervision import healing
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.deadline import Deadline
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Attempt, ConditionType, JobRecord, Phase, Slot
from rallypoint.wire.incident import merge_incidents
from rallypoint.wire.status import JobState, JobStatus, Outcome, Progress, Verdict

__all__ = ["TRANSITIONS", "Decision", "reconcile"]

#: Which phase may follow which. Terminal phases are written out. `JobRecord.restarted` leads from a finished phase to Empty.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.EMPTY: frozenset({Phase.SUSPENDED, Phase.RESUMING, Phase.TERMINATING}),
    Phase.SUSPENDED: frozenset({Phase.RESUMING, Phase.TERMINATING}),
    Phase.SUSPENDING: frozenset({Phase.SUSPENDED, Phase.TERMINATING}),
    Phase.RESUMING: frozenset({Phase.RUNNING, Phase.RESETTING, Phase.FAILED, Phase.TERMINATING}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.RESETTING, Phase.FAILED, Phase.TERMINATING}),
    Phase.RESETTING: frozenset({Phase.RESUMING, Phase.TERMINATING}),
    Phase.SUCCEEDED: frozenset({Phase.TERMINATING}),
    Phase.FAILED: frozenset({Phase.TERMINATING}),
    Phase.TERMINATING: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a turn decided.

    Attributes:
        record: to be saved before anything is done.
        actions: to be done then, in this order; they are emitted again until they are seen to be so.
        wake_at: wall time (seconds since the epoch) of the next deadline, or None when only a change matters.
        done: nothing is left to supervise.
        deadlines: the clocks that run, the next one first.
    """

    record: JobRecord
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    done: bool = False
    deadlines: tuple[Deadline, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """The arguments of one turn, and the status if it speaks of the current attempt."""

    record: JobRecord
    seen: Observation
    policy: Policy

    @property
    def status(self) -> JobStatus | None:
        status = self.seen.status
        belongs = status is not None and status.uid == self.record.uid and status.fence.attempt == self.record.attempt
        return status if belongs else None

    def with_record(self, record: JobRecord) -> _Turn:
        return dataclasses.replace(self, record=record)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What one phase says: the record it leaves, its actions, and the job's clock at which to look again."""

    record: JobRecord
    actions: tuple[Action, ...] = ()
    deadline: float | None = None
    done: bool = False


def reconcile(record: JobRecord, seen: Observation, policy: Policy, now: float) -> Decision:
    """Decide one turn; `now` is seconds since the epoch, read before `seen` was observed."""
    elapsed = min(max(0.0, now - record.last_now), policy.max_gap)
    # `last_now` follows the wall clock back, too: one reading from the future must not stop the job's clock until then.
    record = dataclasses.replace(record, clock=record.clock + elapsed, last_now=now)
    turn = _absorb(_Turn(record=record, seen=seen, policy=policy))
    if turn.record.deletion and turn.record.phase is not Phase.TERMINATING:
        turn = turn.with_record(_enter(turn.record, Phase.TERMINATING, "deletion was asked for"))
    while True:
        step = _PHASES[turn.record.phase](turn)
        if step.record.phase is turn.record.phase:
            break
        turn = turn.with_record(step.record)
    wake_at = None if step.deadline is None else record.last_now + max(0.0, step.deadline - step.record.clock)
    return Decision(record=step.record, actions=step.actions, wake_at=wake_at, done=step.done)


def _absorb(turn: _Turn) -> _Turn:
    """Take over what the coordinator told of the current attempt."""
    status = turn.status
    if status is None:
        return turn
    incidents = merge_incidents(turn.record.incidents, status.incidents)
    return turn.with_record(dataclasses.replace(turn.record, incidents=incidents))


def _enter(record: JobRecord, phase: Phase, why: str) -> JobRecord:
    if phase not in TRANSITIONS[record.phase]:
        msg = f"job {record.name}: {record.phase.value or 'Empty'} must not become {phase.value}"
        raise AssertionError(msg)
    return dataclasses.replace(record, phase=phase).with_history(phase.value.lower(), why)


# --- Empty, Resuming -------------------------------------------------------------------------------------------------------


def _empty(turn: _Turn) -> _Step:
    return _Step(record=_deploy(turn.record, turn.policy))


def _deploy(record: JobRecord, policy: Policy) -> JobRecord:
    """Begin the next attempt."""
    attempt = record.attempt + 1
    record = dataclasses.replace(
        record,
        attempt=attempt,
        term=record.term + 1,
        silent_terms=0,
        slots=tuple(Slot(node=node) for node in range(policy.max_nodes)),
        attempts=(*record.attempts, Attempt(number=attempt, owner=record.owner, started_at=record.last_now)),
    )
    for kind, value in (
        (ConditionType.QUOTA_RESERVED, True),
        (ConditionType.RESOURCES_DEPLOYED, True),
        (ConditionType.PODS_READY, False),
        (ConditionType.UNHEALTHY, False),
    ):
        record = record.with_condition(kind, "Resuming", value=value)
    return _enter(record, Phase.RESUMING, f"attempt {attempt} of at most {attempt + policy.retry_limit - record.retries}")


def _resuming(turn: _Turn) -> _Step:
    record, policy = turn.record, turn.policy
    fatal = next((e for e in turn.seen.create_errors if e.fatal and e.attempt == record.attempt), None)
    if fatal is not None:
        return _fail(turn, "CreateFailed", fatal.reason)
    missing = healing.missing_nodes(record, turn.seen)
    if not missing and healing.coordinator_exists(record, turn.seen):
        return _Step(record=_enter(record, Phase.RUNNING, f"{len(record.slots)} nodes exist"))
    deadline = _since(record, ConditionType.RESOURCES_DEPLOYED, value=True) + policy.admission_grace
    if record.clock >= deadline:
        if len(record.slots) - len(missing) >= policy.min_nodes and healing.coordinator_exists(record, turn.seen):
            return _Step(record=_enter(record, Phase.RUNNING, f"{len(missing)} nodes are still missing"))
        reason = next((e.reason for e in turn.seen.create_errors), f"{len(missing)} of {len(record.slots)} nodes are missing")
        return _reset_or_fail(turn, "CreateFailed" if turn.seen.create_errors else "InsufficientPodsReady", reason)
    return _Step(record=record, actions=_wanted(turn), deadline=deadline)


# --- Running ---------------------------------------------------------------------------------------------------------------


def _running(turn: _Turn) -> _Step:
    deadlines = []
    for check in (_ended_inside, _coordinator_failed, _nodes_failed, _ready):
        step = check(turn)
        if step.record.phase is not Phase.RUNNING:
            return step
        turn = turn.with_record(step.record)
        deadlines.append(step.deadline)
    deadlines.append(healing.next_replacement(turn.record, turn.policy))
    earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
    return _Step(record=turn.record, actions=_wanted(turn), deadline=earliest)


def _ended_inside(turn: _Turn) -> _Step:
    status = turn.status
    if status is None or status.verdict is None:
        return _Step(record=turn.record)
    if status.verdict.outcome is Outcome.FAILED:
        return _reset_or_fail(turn, "FailedComponent", status.verdict.message, status.verdict)
    record = _close_attempt(turn, "Completed", status.verdict.message)
    record = dataclasses.replace(record, verdict=status.verdict)
    record = record.with_condition(ConditionType.UNHEALTHY, "Completed", value=False)
    record = record.with_condition(ConditionType.QUOTA_RESERVED, "Succeeded", value=False)
    return _Step(record=_enter(record, Phase.SUCCEEDED, status.verdict.message))


def _coordinator_failed(turn: _Turn) -> _Step:
    record, ended = healing.replace_coordinator(turn.record, turn.seen, turn.status)
    if ended is not None and record.silent_terms >= healing.SILENT_TERMS:
        reason = f"{record.silent_terms} coordinators in a row ended before they spoke; the last: {ended}"
        return _reset_or_fail(turn.with_record(record), "CoordinatorFailed", reason)
    if ended is not None and healing.coordinators_lost(record) > healing.COORDINATOR_LIMIT:
        reason = f"{healing.coordinators_lost(record)} coordinators ended in this attempt; the last: {ended}"
        return _reset_or_fail(turn.with_record(record), "CoordinatorFailed", reason)
    return _Step(record=record)


def _nodes_failed(turn: _Turn) -> _Step:
    record = healing.note_lost_nodes(turn.record, turn.seen)
    record = healing.replace_lost_nodes(record, turn.policy)
    record = healing.note_healed(record, turn.status)
    gone = healing.irreplaceable(record, turn.policy)
    left = len(record.slots) - len(gone)
    if left >= turn.policy.min_nodes:
        return _Step(record=record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False))
    record = record.with_condition(ConditionType.UNHEALTHY, "FoundFailedPods", value=True)
    deadline = _since(record, ConditionType.UNHEALTHY, value=True) + turn.policy.failure_grace
    if record.clock < deadline:
        return _Step(record=record, deadline=deadline)
    lost = healing.describe_lost(record, gone)
    reason = f"{left} nodes are left of at least {turn.policy.min_nodes}: {lost}"
    return _reset_or_fail(turn.with_record(record), "FoundFailedPods", reason)


def _ready(turn: _Turn) -> _Step:
    record, status = turn.record, turn.status
    if status is not None and status.state is JobState.RUNNING:
        return _Step(record=record.with_condition(ConditionType.PODS_READY, "SufficientPodsReady", value=True))
    record = record.with_condition(ConditionType.PODS_READY, "InsufficientPodsReady", value=False)
    origin = max(
        _since(record, ConditionType.RESOURCES_DEPLOYED, value=True),
        _since(record, ConditionType.PODS_READY, value=False),
    )
    deadline = origin + turn.policy.warmup_grace
    if record.clock < deadline:
        return _Step(record=record, deadline=deadline)
    grace = f"the warm-up grace of {turn.policy.warmup_grace:g} s"
    reason = f"no world of at least {turn.policy.min_nodes} nodes ran within {grace}"
    return _reset_or_fail(turn.with_record(record), "InsufficientPodsReady", reason)


def _wanted(turn: _Turn) -> tuple[Action, ...]:
    """What must be created or removed so that exactly the wanted nodes and coordinator exist."""
    record, seen = turn.record, turn.seen
    actions: list[Action] = []
    if not healing.coordinator_exists(record, seen):
        actions.append(CreateCoordinator(attempt=record.attempt, term=record.term))
    actions.extend(
        CreateNode(attempt=record.attempt, node=slot.node, incarnation=slot.incarnation)
        for slot in healing.missing_nodes(record, seen)
    )
    return (*healing.strays(record, seen), *actions)


# --- Resetting, and the ends -----------------------------------------------------------------------------------------------


def _reset_or_fail(turn: _Turn, reason: str, message: str, verdict: Verdict | None = None) -> _Step:
    record = turn.record.with_condition(ConditionType.UNHEALTHY, reason, value=True)
    turn = turn.with_record(record)
    if record.retries >= turn.policy.retry_limit:
        return _fail(turn, reason, message, verdict)
    record = _close_attempt(turn, reason, message)
    record = dataclasses.replace(record, retries=record.retries + 1)
    record = record.with_condition(ConditionType.PODS_READY, "Resetting", value=False)
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    return _Step(record=_enter(record, Phase.RESETTING, f"retry {record.retries} of {turn.policy.retry_limit}: {message}"))


def _fail(turn: _Turn, reason: str, message: str, verdict: Verdict | None = None) -> _Step:
    record = _close_attempt(turn, reason, message)
    if verdict is None:
        verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message)
    record = dataclasses.replace(record, verdict=verdict)
    record = record.with_condition(ConditionType.UNHEALTHY, reason, value=True)
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
    return _Step(record=_enter(record, Phase.FAILED, message))


def _close_attempt(turn: _Turn, reason: str, message: str) -> JobRecord:
    """End the attempt with what was reported last; an attempt that reported nothing leaves the job's progress as it was."""
    record, status = turn.record, turn.status
    told = Progress() if status is None else status.progress
    *earlier, last = record.attempts
    ended = dataclasses.replace(last, ended_at=record.last_now, reason=reason, message=message, progress=told)
    progress = record.progress if told.step is None else told
    return dataclasses.replace(record, attempts=(*earlier, ended), progress=progress)


def _resetting(turn: _Turn) -> _Step:
    record = turn.record
    if turn.seen.present:
        return _delete(turn)
    record = _all_gone(record)
    gone_since = _since(record, ConditionType.RESOURCES_DEPLOYED, value=False)
    deadline = gone_since + turn.policy.retry_pause
    if record.clock < deadline:
        return _Step(record=record, deadline=deadline)
    return _Step(record=_deploy(record, turn.policy))


def _succeeded(turn: _Turn) -> _Step:
    record = turn.record
    if not turn.seen.present:
        return _Step(record=_all_gone(record), done=True)
    # The agents were told and end by themselves; whoever has not by then is ended.
    deadline = _since(record, ConditionType.QUOTA_RESERVED, value=False) + turn.policy.exit_grace
    if record.clock < deadline and any(node.present for node in turn.seen.nodes):
        return _Step(record=record, deadline=deadline)
    return _delete(turn.with_record(record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)))


def _failed(turn: _Turn) -> _Step:
    if turn.seen.present:
        return _delete(turn)
    record = _all_gone(turn.record).with_condition(ConditionType.QUOTA_RESERVED, "Failed", value=False)
    return _Step(record=record, done=True)


def _terminating(turn: _Turn) -> _Step:
    if turn.seen.present:
        record = turn.record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionInitiated", value=True)
        return _delete(turn.with_record(record))
    return _Step(record=_all_gone(turn.record), actions=(Purge(),), done=True)


def _all_gone(record: JobRecord) -> JobRecord:
    record = record.with_condition(ConditionType.DELETING_RESOURCES, "DeletionComplete", value=False)
    return record.with_condition(ConditionType.RESOURCES_DEPLOYED, record.phase.value, value=False)


def _delete(turn: _Turn) -> _Step:
    """Remove whatever is there of any attempt; by force once the forceful grace is over."""
    record, seen = turn.record, turn.seen
    forced_at = _since(record, ConditionType.DELETING_RESOURCES, value=True) + turn.policy.forceful_deletion_grace
    force = record.clock > forced_at
    nodes = tuple(
        RemoveNode(attempt=n.attempt, node=n.node, incarnation=n.incarnation, force=force or n.ended)
        for n in seen.nodes
        if n.present
    )
    coordinators = tuple(
        RemoveCoordinator(attempt=c.attempt, term=c.incarnation, force=force or c.ended) for c in seen.coordinators if c.present
    )
    return _Step(record=record, actions=(*nodes, *coordinators), deadline=None if force else forced_at)


def _since(record: JobRecord, kind: ConditionType, *, value: bool) -> float:
    """Return since when a condition holds; a condition that was never set counts from this turn."""
    since = record.since(kind, value=value)
    return record.clock if since is None else since


_PHASES: Mapping[Phase, Callable[[_Turn], _Step]] = {
    Phase.EMPTY: _empty,
    Phase.RESUMING: _resuming,
    Phase.RUNNING: _running,
    Phase.RESETTING: _resetting,
    Phase.SUCCEEDED: _succeeded,
    Phase.FAILED: _failed,
    Phase.TERMINATING: _terminating,
}
