r"""The supervisor's state machine: what is true, and what should therefore be so.

Theory of operation
===================

Rule 1: everything that decides a phase lives in this room. This file holds the turn and the phases, `turn.py` the table of
which may follow which, `running.py` the checks of a running job in their order, `endings.py` resets, failures and deletions,
and `healing.py` the replacement of single nodes. Nothing here reads a clock, a file or the network; `now` is an argument, and
the same arguments always give the same decision.

A turn is: load the record, read the clock, observe, `reconcile`, save the new record, and only then act. Because the record is
saved first, a supervisor that is killed at any point leaves a record that is at least as new as the world, and the next one
repeats the actions: they are computed afresh on each turn from (record, observation) and are emitted until they are seen to be
so. There are no events here, so none can be lost.

Time is the job's own clock (`JobRecord.clock`), which advances with the wall clock but never backwards, and by at most
`Policy.max_gap` between two turns: a laptop that slept a night, or an hour without any supervisor, expires no grace. `now` is
read before the observation is made, so a deadline only ever acts on what was seen after it. A wait goes on while the clock is
before its deadline and is over when it reads it. The table of all clocks is `clocks.CLOCKS`.

Phases are AppWrapper's::

    Empty -> Suspended -> Resuming -> Running -> Succeeded
                 ^           ^  \\       |  \\
                 |           |   \\      v   v
             Suspending <----+-- Resetting  Failed          any -> Terminating

Three profiles share it. `appwrapper` is the reference's machine: a fixed world, and any loss past its grace resets the job.
`ladder`: a job degrades before it resets; a lost node is replaced while the others go on, and only fewer than `min_nodes`
that live or can come back, for longer than the failure grace, reset it. A profile with a package of its own answers faults by
its own rules (`profile.py`).

A reset deletes everything, sees that zero is left, pauses, and starts the next attempt with the next number; quota (the slot of
the job) is kept throughout. `retry_limit` resets make `retry_limit + 1` attempts at the most. What costs nothing (suspension,
evacuation, another supervisor) is never counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rallypoint.supervision import census, clocks, endings, folding, following, resizing, running, wrapped
from rallypoint.supervision.actions import Action
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.following import waits_for
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Attempt, ConditionType, JobRecord, Phase, Slot
from rallypoint.supervision.turn import TRANSITIONS, Step, Turn, enter, since
from rallypoint.wire.incident import merge_incidents

__all__ = ["TRANSITIONS", "Decision", "reconcile"]

#: A turn that passes through more phases than there are is a fault of this room.
_MOST_PHASES = len(Phase)

#: Seconds after which something that could not be created is tried again.
_CREATE_AGAIN = 1.0


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


def reconcile(record: JobRecord, seen: Observation, policy: Policy, now: float) -> Decision:
    """Decide one turn; `now` is seconds since the epoch, read before `seen` was observed."""
    before = record
    elapsed = min(max(0.0, now - record.last_now), policy.max_gap)
    # `last_now` follows the wall clock back, too: one reading from the future must not stop the job's clock until then.
    record = record.ticked(clock=record.clock + elapsed, now=now)
    if policy.followed:
        return _decided(following.follow(record, seen, policy), before, seen)
    policy = policy.sized(record.size)
    turn = _absorb(_survey(resizing.fit(record, policy), seen, policy))
    if turn.record.deletion and turn.record.phase is not Phase.TERMINATING:
        turn = turn.with_record(enter(turn.record, Phase.TERMINATING, "deletion was requested"))
    for _ in range(_MOST_PHASES):
        step = _PHASES[turn.record.phase](turn)
        if step.record.phase is turn.record.phase:
            return _decided(step, before, seen)
        turn = _survey(step.record, seen, policy)
    raise AssertionError(f"job {record.name}: one call of reconcile() changed the phase more than {_MOST_PHASES} times")


def _decided(step: Step, before: JobRecord, seen: Observation) -> Decision:
    record, waits = folding.fold(step.record, before), waits_for(step.record, seen)
    if waits != record.waits_for:
        record = dataclasses.replace(record, waits_for=waits)
    deadlines = tuple(sorted(step.deadlines))
    wake_at = record.last_now + max(0.0, deadlines[0].at - record.clock) if deadlines else None
    return Decision(record=record, actions=step.actions, wake_at=wake_at, done=step.done, deadlines=deadlines)


def _survey(record: JobRecord, seen: Observation, policy: Policy) -> Turn:
    """Count what is there, and take the status if it speaks of this attempt."""
    counted = census.take(record, seen, policy)
    if counted.slots != record.slots:
        record = dataclasses.replace(record, slots=counted.slots)
    status = seen.status
    belongs = status is not None and status.uid == record.uid and status.fence.attempt == record.attempt
    return Turn(record=record, seen=seen, policy=policy, census=counted, status=status if belongs else None)


def _absorb(turn: Turn) -> Turn:
    """Take over what the coordinator told of the current attempt."""
    if turn.status is None:
        return turn
    record = folding.take_over(turn.record, turn.status.folded)
    known = {incident.id: incident for incident in record.incidents}
    told = tuple(i for i in turn.status.incidents if known.get(i.id) != i)
    stamped = tuple(dataclasses.replace(i, clock=i.clock or record.clock) for i in folding.news(record, told))
    merged = merge_incidents(record.incidents, stamped) if stamped else record.incidents
    if merged != record.incidents:
        record = dataclasses.replace(record, incidents=merged)
    return turn if record is turn.record else turn.with_record(record)


# --- Empty, Suspended, Suspending ------------------------------------------------------------------------------------------


def _empty(turn: Turn) -> Step:
    if turn.record.attempt and turn.present:
        return endings.sweep(turn)
    if turn.suspend:
        return Step(record=enter(turn.record, Phase.SUSPENDED, "it was submitted as suspended"))
    return Step(record=_deploy(endings.swept(turn.record), turn.policy))


def _suspended(turn: Turn) -> Step:
    """Nothing exists and nothing is counted: however long it waits, it costs nothing and starts no clock."""
    if turn.record.attempt and turn.present:
        return endings.sweep(turn)
    record = endings.swept(turn.record)
    return Step(record=record) if turn.suspend else Step(record=_deploy(record, turn.policy))


def _suspending(turn: Turn) -> Step:
    """A suspension that has begun is finished, even if it was taken back."""
    if turn.present:
        return endings.delete(turn)
    record = endings.all_gone(turn.record, "Suspended")
    for kind in (ConditionType.QUOTA_RESERVED, ConditionType.PODS_READY, ConditionType.UNHEALTHY):
        record = record.with_condition(kind, "Suspended", value=False)
    return Step(record=enter(record, Phase.SUSPENDED, "no pods are left; its quota is released"))


def _deploy(record: JobRecord, policy: Policy) -> JobRecord:
    """Begin the next attempt."""
    attempt = record.attempt + 1
    left = max(0, policy.retry_limit - len(record.charges))
    record = dataclasses.replace(
        record,
        attempt=attempt,
        term=record.term + 1,
        silent_terms=0,
        renew=False,
        retired=(),
        left_groups=(),
        slots=() if policy.wrapped else tuple(Slot(node=node) for node in range(policy.max_nodes)),
        timers=(),
        course=record.course.paused(),
        warned=(),
        attempts=(*record.attempts, Attempt(number=attempt, owner=record.owner, started_at=record.last_now)),
    )
    for kind, value in (
        (ConditionType.QUOTA_RESERVED, True),
        (ConditionType.RESOURCES_DEPLOYED, True),
        (ConditionType.PODS_READY, False),
        (ConditionType.UNHEALTHY, False),
    ):
        record = record.with_condition(kind, "Resuming", value=value)
    record = clocks.run(clocks.run(record, "admission"), "warm-up")
    return enter(record, Phase.RESUMING, f"attempt {attempt} of at most {attempt + left}")


# --- Resuming, Running -----------------------------------------------------------------------------------------------------


def _resuming(turn: Turn) -> Step:
    if turn.suspend:
        return endings.suspend(turn)
    if turn.record.renew:
        return endings.renew(turn)
    refused = running.not_created(turn)
    if refused is not None and refused.record.phase is not Phase.RESUMING:
        return refused
    if refused is None and running.deployed(turn):
        return Step(record=enter(turn.record, Phase.RUNNING, running.what_exists(turn)))
    again = Deadline(at=turn.record.clock + _CREATE_AGAIN, clock="admission", then="missing objects are created")
    step = refused or Step(record=running.wait_for_room(turn.record) if running.lacks_room(turn) else turn.record)
    return dataclasses.replace(step, actions=running.wanted(turn), deadlines=(*step.deadlines, again))


def _running(turn: Turn) -> Step:
    if turn.policy.wrapped:
        turn = turn.with_record(wrapped.noted(turn.record, turn.seen.nodes, turn.policy))
    deadlines: list[Deadline] = []
    for check in running.CHECKS:
        step = check(turn)
        deadlines.extend(step.deadlines)
        if step.record.phase is not Phase.RUNNING:
            return step
        turn = turn.with_record(step.record)
        if step.settled:
            break
    return Step(record=turn.record, actions=running.wanted(turn), deadlines=tuple(deadlines))


# --- Resetting, and the ends -----------------------------------------------------------------------------------------------


def _resetting(turn: Turn) -> Step:
    if turn.suspend:
        return Step(record=endings.suspending(turn.record))
    if turn.present:
        return endings.delete(turn)
    record = endings.all_gone(turn.record, "Resetting")
    pause_for = 0.0 if record.renew else turn.policy.retry_pause
    resume_at = since(record, ConditionType.RESOURCES_DEPLOYED, value=False) + pause_for
    if record.clock < resume_at:
        pause = Deadline(at=resume_at, clock="retry-pause", then=f"attempt {record.attempt + 1} is deployed")
        return Step(record=record, deadlines=(pause,))
    return Step(record=_deploy(record, turn.policy))


_PHASES: Mapping[Phase, Callable[[Turn], Step]] = {
    Phase.EMPTY: _empty,
    Phase.SUSPENDED: _suspended,
    Phase.RESUMING: _resuming,
    Phase.RUNNING: _running,
    Phase.RESETTING: _resetting,
    Phase.SUSPENDING: _suspending,
    Phase.SUCCEEDED: endings.succeeded,
    Phase.FAILED: endings.failed,
    Phase.TERMINATING: endings.terminating,
}
