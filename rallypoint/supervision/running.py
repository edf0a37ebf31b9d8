"""The checks of an attempt that is being created or runs, in their order; the first that ends the phase decides. Pure.

The order is AppWrapper's: suspend, missing component, failed component, success, failed pods, evacuation, ready, warm-up or
admission. A coordinator's verdict is what a failed component is elsewhere, and a coordinator that ended is looked for after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from rallypoint.supervision import clocks, coordinators, endings, healing
from rallypoint.supervision.actions import Action, CreateComponents, CreateCoordinator, CreateNode
from rallypoint.supervision.census import exit_codes
from rallypoint.supervision.charges import refilled
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.endings import judge_pending
from rallypoint.supervision.observation import NodeSeen, NodeState, how_it_ended
from rallypoint.supervision.profile import rules_of
from rallypoint.supervision.record import ConditionType, JobRecord
from rallypoint.supervision.turn import Step, Turn, over, since
from rallypoint.wire.exits import Exit
from rallypoint.wire.plan import Profile
from rallypoint.wire.status import JobState, Outcome, Verdict

__all__ = ["CHECKS", "FINAL", "deployed", "lacks_room", "not_created", "wait_for_room", "wanted", "what_exists"]

#: Reasons of verdicts that allow no retry, however much of the budget is left.
FINAL = frozenset({"FailNow", "Orphaned", "TerminalExitCode"})

_SPLIT = (
    "two parts of the job could train at the same time (to prevent this, allow the coordinator to write its status, or set "
    "MIN to more than half of MAX)"
)

_THEN_RESET = "the job is reset, or fails if its retries are used up"


# --- Being created ---------------------------------------------------------------------------------------------------------


def deployed(turn: Turn) -> bool:
    """Return whether the attempt's components stand, and what we make ourselves has begun to exist without an error."""
    components = turn.seen.components
    if turn.policy.wrapped:
        return components.deployed >= components.expected
    refused = any(error.attempt == turn.record.attempt and not error.waits for error in turn.seen.create_errors)
    begun = turn.census.existing + turn.census.failed > 0 or coordinators.exists(turn.record, turn.seen)
    return begun and not refused


def what_exists(turn: Turn) -> str:
    """Return in words what stands."""
    if turn.policy.wrapped:
        return f"components created: {turn.seen.components.deployed} of {turn.seen.components.expected}"
    exists = len(turn.record.slots) - len(turn.census.missing)
    return f"nodes created: {exists} of {len(turn.record.slots)}"


def not_created(turn: Turn) -> Step | None:
    """Return how the attempt ends because something of it cannot be created, or None while it may still be."""
    errors = tuple(e for e in turn.seen.create_errors if e.attempt == turn.record.attempt and not e.waits)
    fatal = next((e for e in errors if e.fatal), None)
    if fatal is not None:
        return endings.fail(turn, "CreateFailed", fatal.reason)
    if errors and clocks.spent(turn.record, "admission") >= turn.policy.admission_grace:
        return _after_failure_grace(turn.with_record(turn.record.unhealthy("CreateFailed")), "CreateFailed", errors[0].reason)
    return None


def lacks_room(turn: Turn) -> bool:
    """Return whether something of the attempt cannot be created for want of room alone."""
    return any(error.waits and error.attempt == turn.record.attempt for error in turn.seen.create_errors)


def wait_for_room(record: JobRecord) -> JobRecord:
    """Return the record with the clocks of the start standing still; `_tick` lets them run again."""
    return clocks.pause(clocks.pause(record, "admission"), "warm-up")


def wanted(turn: Turn) -> tuple[Action, ...]:
    """What must be created or removed so that exactly the wanted nodes and coordinator exist."""
    record, seen = turn.record, turn.seen
    if turn.policy.wrapped:
        lacking = seen.components.deployed < seen.components.expected
        return (CreateComponents(attempt=record.attempt),) if lacking else ()
    # Slots that were changed in this turn want what nobody has counted yet.
    changed = record.slots is not turn.census.slots and record.slots != turn.census.slots
    missing = healing.missing_nodes(record, seen) if changed else turn.census.missing
    actions: list[Action] = []
    if not coordinators.exists(record, seen):
        actions.append(CreateCoordinator(attempt=record.attempt, term=record.term))
    # Two nodes of one slot must never run at once: that a later one speaks is the coordinator's proof that the earlier is gone.
    taken = {n.node for n in seen.nodes if n.present and n.attempt == record.attempt} if missing else ()
    actions.extend(
        CreateNode(attempt=record.attempt, node=s.node, incarnation=s.incarnation, unseen=s.unseen)
        for s in missing
        if s.node not in taken
    )
    strays = coordinators.strays(record, seen)
    if changed or not turn.census.tidy:
        strays = (*healing.strays(record, seen, endings.forceful_grace(turn.policy)), *strays)
    return (*strays, *actions)


# --- The checks ------------------------------------------------------------------------------------------------------------


def _suspended(turn: Turn) -> Step:
    if turn.suspend:
        return endings.suspend(turn)
    return endings.renew(turn) if turn.record.renew else Step(record=turn.record)


def _missing_component(turn: Turn) -> Step:
    components = turn.seen.components
    if components.deployed >= components.expected:
        return Step(record=turn.record)
    gone = components.expected - components.deployed
    what = (
        "the job's folder or ConfigMap was" if not turn.policy.wrapped else f"{gone} of {components.expected} components were"
    )
    record = turn.record.unhealthy("MissingComponent")
    return endings.fail(turn.with_record(record), "MissingComponent", f"{what} deleted by another client")


def _failed_component(turn: Turn) -> Step:
    status = turn.status
    if status is not None and status.verdict is not None and status.verdict.outcome is Outcome.FAILED:
        verdict = status.verdict
        final, rules = verdict.reason in FINAL, rules_of(turn.policy.profile)
        if rules is not None and not final:
            return rules.answer_verdict(turn, verdict)
        return endings.reset_or_fail(turn, "FailedComponent", verdict.message, verdict=verdict, final=final)
    if status is not None and status.verdict is None and _stopped_by_themselves(turn):
        message = "the lease expired without a supervisor heartbeat, and the agents stopped the job"
        return endings.fail(turn, "Orphaned", message)
    failed = turn.seen.components.failed
    if not failed:
        return Step(record=turn.record)
    return endings.reset_or_fail(turn, "FailedComponent", f"{failed} components failed", final=_terminal(turn))


def _stopped_by_themselves(turn: Turn) -> bool:
    """Return whether the orphan policy was carried out by the agents alone: no coordinator was left to give a verdict."""
    census = turn.census
    alive = census.pending or census.running or census.succeeded or census.missing
    return not alive and bool(census.ended) and all(node.exit_code == Exit.ORPHANED for node in census.ended)


def _success(turn: Turn) -> Step:
    status, census = turn.status, turn.census
    if status is not None and status.verdict is not None:
        return endings.succeed(turn, status.verdict)
    expected = turn.policy.max_nodes
    busy = census.pending + census.running + census.failed + census.lost + len(census.missing)
    if census.succeeded < expected or busy:
        return Step(record=turn.record)
    message = f"all {expected} pods succeeded"
    return endings.succeed(turn, Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message=message))


def _coordinator(turn: Turn) -> Step:
    if turn.policy.wrapped:
        return Step(record=turn.record)
    record, ended = coordinators.replace(turn.record, turn.seen, turn.status)
    if ended is None:
        return Step(record=record)
    if _may_live_on(turn):
        reason = f"the coordinator {ended}; it may still run, and no other coordinator can read its status, so {_SPLIT}"
        return endings.reset_or_fail(turn.with_record(record), "CoordinatorFailed", reason)
    lost = coordinators.lost(record)
    if record.silent_terms >= coordinators.SILENT_TERMS:
        reason = f"{record.silent_terms} coordinators in a row ended before their first status; last: {ended}"
        return endings.reset_or_fail(turn.with_record(record), "CoordinatorFailed", reason)
    if lost > turn.policy.coordinator_replacements:
        reason = f"{lost} coordinators ended in this attempt; last: {ended}"
        return endings.reset_or_fail(turn.with_record(record), "CoordinatorFailed", reason)
    return Step(record=record)


def _may_live_on(turn: Turn) -> bool:
    """Return whether a second coordinator could close a round beside one that nobody saw end.

    What the first could not write where the second reads it, the second cannot know; where more than half of the largest world
    is needed for any, at most one of the two can have one.
    """
    record, status, policy = turn.record, turn.status, turn.policy
    if status is None or status.durable or 2 * policy.min_nodes > policy.max_nodes:
        return False
    current = (record.attempt, record.term)
    return any((c.attempt, c.incarnation) == current and c.state is NodeState.LOST for c in turn.seen.coordinators)


def _uncreated(turn: Turn) -> Step:
    """What cannot be created while the job has never been ready decides it; later the graces do."""
    if turn.record.attempts[-1].ready_at is not None:
        return Step(record=healing.note_uncreatable(turn.record, turn.seen))
    step = not_created(turn)
    return Step(record=turn.record) if step is None else dataclasses.replace(step, settled=True)


def _failed_pods(turn: Turn) -> Step:
    if turn.policy.wrapped:
        return _tolerate(turn, turn.census.failed, _how(turn.census.ended), final=_terminal(turn))
    record = healing.note_lost_nodes(turn.record, turn.census, turn.policy)
    turn = turn.with_record(healing.note_healed(record, turn.status))
    hopeless = healing.hopeless(turn.record) if _anybody_lost(turn) else None
    if turn.policy.profile is Profile.APPWRAPPER:
        failed = tuple(s for s in turn.record.slots if s.lost_clock is not None)
        return _tolerate(turn, len(failed), healing.describe_lost(turn.record, failed), final=hopeless is not None)
    if hopeless is not None:
        return endings.reset_or_fail(turn, *hopeless, final=True)
    rules = rules_of(turn.policy.profile)
    return _replace(turn) if rules is None else rules.answer_losses(turn)


def _anybody_lost(turn: Turn) -> bool:
    """Return False where no slot can be a lost one: none was when they were counted, and they are the same since."""
    return turn.census.lost > 0 or turn.record.slots is not turn.census.slots


def _replace(turn: Turn) -> Step:
    """The ladder: lost nodes are replaced; too few that live or can come back are tolerated for the failure grace."""
    if not _anybody_lost(turn):
        fenced = healing.fenced_until(turn.record, turn.status, turn.policy)
        return dataclasses.replace(_tolerate(turn, 0, ""), deadlines=_given(fenced))
    record = healing.replace_lost_nodes(turn.record, turn.policy)
    turn = turn.with_record(record)
    gone = healing.irreplaceable(record, turn.policy)
    left = len(record.slots) - len(gone)
    if left >= turn.policy.min_nodes:
        step = _tolerate(turn, 0, "")
        replacement = healing.next_replacement(record, turn.policy)
        return step if replacement is None else dataclasses.replace(step, deadlines=(*step.deadlines, replacement))
    why = f"{left} nodes are left, at least {turn.policy.min_nodes} are required: {healing.describe_lost(record, gone)}"
    return _tolerate(turn, len(gone), why)


def _tolerate(turn: Turn, failed: int, why: str, *, final: bool = False) -> Step:
    """Failed pods are tolerated for the failure grace; what was found at its end is decided on what is there then."""
    record = turn.record
    if not failed:
        found = record.find(ConditionType.UNHEALTHY)
        if found is not None and found.value and found.reason == "FoundFailedPods":
            record = record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False)
        return Step(record=record)
    turn = turn.with_record(record.unhealthy("FoundFailedPods"))
    step = _after_failure_grace(turn, "FoundFailedPods", why or f"{failed} pods failed", final=final)
    return dataclasses.replace(step, settled=True)


def _after_failure_grace(turn: Turn, reason: str, why: str, *, final: bool = False) -> Step:
    record = turn.record
    at = since(record, ConditionType.UNHEALTHY, value=True) + turn.policy.failure_grace
    if record.clock < at:
        return Step(record=record, deadlines=(Deadline(at=at, clock="failure", then=_THEN_RESET),))
    return endings.reset_or_fail(turn, reason, why, final=final)


def _evacuation(turn: Turn) -> Step:
    if turn.census.outdated and not turn.policy.wrapped:
        turn = turn.with_record(healing.evacuate(turn.record, turn.census.outdated))
    flagged = turn.census.flagged
    if not flagged or rules_of(turn.policy.profile) is not None:
        return Step(record=turn.record)
    if turn.policy.profile is Profile.APPWRAPPER:
        where = "; ".join(f"node {n.node} on {n.host or 'an unknown host'}: {n.flagged}" for n in flagged)
        return endings.reset_or_fail(turn, "AutopilotNoExecute", f"a host is flagged as bad: {where}", cost=0)
    return Step(record=healing.evacuate(turn.record, flagged))


def _node_groups(turn: Turn) -> Step:
    if not turn.policy.node_group or turn.policy.wrapped:
        return Step(record=turn.record)
    record, deadline = healing.leave_groups(turn.record, turn.policy)
    return Step(record=record, deadlines=_given(deadline))


def _ready(turn: Turn) -> Step:
    if _is_ready(turn):
        # The pending clock has a rule of its own: what the coordinator says starts and ends it not.
        record = clocks.stop(turn.record, "admission", "warm-up")
        record = _first_ready(record).with_condition(ConditionType.PODS_READY, "SufficientPodsReady", value=True)
        record = record.with_condition(ConditionType.UNHEALTHY, "FoundNoFailedPods", value=False)
        return _watch_pending(turn.with_record(record))
    record = turn.record
    if record.condition(ConditionType.PODS_READY):
        # Another incident: whoever is to come back has the whole of its grace.
        record = clocks.stop(record, "admission", "warm-up", "pending")
    record = record.with_condition(ConditionType.PODS_READY, "InsufficientPodsReady", value=False)
    return _starting(turn.with_record(record))


def _first_ready(record: JobRecord) -> JobRecord:
    *earlier, last = record.attempts
    if last.ready_at is not None:
        return record
    return dataclasses.replace(record, attempts=(*earlier, dataclasses.replace(last, ready_at=record.last_now)))


def _is_ready(turn: Turn) -> bool:
    if turn.policy.profile is Profile.APPWRAPPER or turn.policy.wrapped:
        return turn.census.running + turn.census.succeeded >= turn.policy.max_nodes
    return turn.status is not None and turn.status.state is JobState.RUNNING


def _watch_pending(turn: Turn) -> Step:
    if turn.policy.profile is Profile.APPWRAPPER:
        return Step(record=turn.record)
    return judge_pending(turn)


def _starting(turn: Turn) -> Step:
    """Judge a job that is not ready: by admission while too few pods exist, else by warm-up, and pending ones by their rule."""
    census, policy = turn.census, turn.policy
    appwrapper = policy.profile is Profile.APPWRAPPER or policy.wrapped
    enough = policy.max_nodes if appwrapper else policy.min_nodes
    turn = turn.with_record(_tick(turn, waits=not appwrapper and _waits(turn)))
    waiting = _watch_pending(turn)
    if waiting.record.phase is not turn.record.phase:
        return waiting
    turn = turn.with_record(waiting.record)
    clock, grace = ("warm-up", policy.warmup_grace) if census.existing >= enough else ("admission", policy.admission_grace)
    timer = clocks.find(turn.record, clock)
    left = over(turn.record, clock, grace, "the job is unhealthy; the failure grace period starts")
    if left is not None or (timer is not None and timer.since is None):
        return dataclasses.replace(waiting, deadlines=(*waiting.deadlines, *_given(left)))
    turn = turn.with_record(turn.record.unhealthy("InsufficientPodsReady"))
    required = f"{census.running} of {enough} required nodes are running"
    why = f"the job was not ready within the {clock} grace period of {grace:g} s ({required})"
    step = _after_failure_grace(turn, "InsufficientPodsReady", why)
    return dataclasses.replace(step, deadlines=(*waiting.deadlines, *step.deadlines))


def _waits(turn: Turn) -> bool:
    """Too few nodes run because others are pending: there is nothing yet that could warm up."""
    census = turn.census
    return census.oldest_pending is not None and census.running + census.succeeded < turn.policy.min_nodes


def _tick(turn: Turn, *, waits: bool) -> JobRecord:
    """Let admission and warm-up run, or stand still: for quota both, and warm-up while too few nodes run to warm up."""
    record = clocks.run(clocks.run(turn.record, "admission"), "warm-up")
    if turn.census.gated or lacks_room(turn):
        return wait_for_room(record)
    return clocks.pause(record, "warm-up") if waits else record


def _given(deadline: Deadline | None) -> tuple[Deadline, ...]:
    return () if deadline is None else (deadline,)


def _budgets(turn: Turn) -> Step:
    return Step(record=refilled(turn.record, turn.policy, turn.status))


def _terminal(turn: Turn) -> bool:
    """Return whether a failed pod's exit code allows no retry; one whose code nobody knows never does that."""
    policy = turn.policy
    codes = {code for node in turn.census.ended if node.state is NodeState.FAILED for code in exit_codes(node) if code}
    listed = any(code in policy.terminal_exit_codes for code in codes)
    return listed or (bool(policy.retryable_exit_codes) and any(code not in policy.retryable_exit_codes for code in codes))


def _how(ended: Iterable[NodeSeen]) -> str:
    failed = (node for node in ended if node.state is not NodeState.SUCCEEDED)
    return "; ".join(f"pod {node.node} {how_it_ended(node)}" for node in failed)


#: The checks of a running attempt, in this order. A component that is missing goes before everything but suspension.
CHECKS: tuple[Callable[[Turn], Step], ...] = (
    _suspended,
    _missing_component,
    _failed_component,
    _success,
    _coordinator,
    _uncreated,
    _failed_pods,
    _evacuation,
    _node_groups,
    _ready,
    _budgets,
)
