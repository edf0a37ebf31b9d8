"""When the nodes are checked, and what the rendezvous does about what was found. Pure; the check itself is agent/check.

All nodes that wait are checked together when a round is about to be closed, and somebody among them was not checked yet (at
first nobody was; later a replacement was not), or a node was lost since. A fault of a process is no reason: the machines are
those that were checked.

A node at fault is sent away as one whose worker asks for another node is: it is replaced, and its machine is kept off. So is
a straggler where `exclude_straggler` says so. Where no two nodes work together the attempt ends (`NodeCheckFailed`): that is
nobody's machine. A job that is nothing but a check (`check_only`) ends well with what was found as its result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.agent.check import course as checking
from rallypoint.agent.check.course import Course, Seat, Stage
from rallypoint.agent.check.told import every_node, sentence, tell
from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.peers import Checks, Peer, State, living
from rallypoint.wire import codec
from rallypoint.wire.check import CheckState, CheckTask, NodeCheck, NodeFound, NodeVerdict, measured
from rallypoint.wire.incident import Answer, Cause, FaultKind, IncidentId
from rallypoint.wire.messages import AgentReport, Continue
from rallypoint.wire.status import JobStatus, Outcome, Verdict

__all__ = ["advanced", "asks", "due", "heard", "inherited", "passed", "running", "task"]


def inherited(state: State, previous: JobStatus) -> State:
    """Return the state of a coordinator that takes over: who trains was checked; a check on its way begins anew."""
    told = previous.check
    if told is None or told.state is CheckState.RUNNING:
        return state
    checked = frozenset(member.agent for member in previous.world)
    checks = Checks(told=told, number=told.number, checked=checked, losses=_losses(state))
    return dataclasses.replace(state, checks=checks)


def running(state: State) -> bool:
    """Return whether nodes are being checked: no round is closed meanwhile."""
    return state.checks.course is not None


def task(state: State) -> int:
    """Return a number that changes when agents are asked for something else."""
    course = state.checks.course
    return 0 if course is None else course.task


def due(state: State) -> float | None:
    """Return when something follows from the check even if nobody says anything."""
    course = state.checks.course
    return None if course is None else checking.due(course)


def asks(state: State, peer: Peer) -> Continue | None:
    """Return what an agent is asked to try, where it has not begun yet."""
    course = state.checks.course
    asked: CheckTask | None = None
    if course is not None and peer.report.agent not in state.away:
        asked = checking.asked(course, peer.report.agent, peer.report.check)
    return None if asked is None else Continue(fence=state.fence, check=asked)


def heard(state: State, report: AgentReport, now: float) -> State:
    """Return the state with what a report tells of its node's probe."""
    course = state.checks.course
    if course is None or report.check is None:
        return state
    return _with(state, checking.heard(course, report.agent, report.check, now))


def passed(state: State, ready: Sequence[Peer], now: float) -> tuple[State, bool]:
    """Return whether these agents may be given a round, with a check begun where they may not yet."""
    settings = state.settings
    if settings.check_level == 0:
        return state, True
    # One of an earlier version cannot be checked; the others are.
    able = [peer for peer in ready if peer.report.check is not None]
    reason = _why(state, able)
    if not able or not reason:
        return state, True
    course = Course(
        number=state.checks.number + 1,
        term=state.fence.term,
        level=settings.check_level,
        reason=reason,
        started_at=now,
        limit=settings.check_timeout,
        seats=tuple(_seat(peer) for peer in sorted(able, key=lambda peer: peer.node)),
        all_pairs=settings.check_all_pairs,
        exclude_straggler=settings.exclude_straggler,
        task=state.checks.tasks,
        stores={peer.report.agent: peer.report.check.store for peer in able if peer.report.check is not None},
    )
    state = _with(state, checking.begun(course, now), number=course.number)
    state = telling.event(state, "node-check", f"node check {course.number} started on {len(able)} nodes: {reason}", now)
    return _retold(state, now), False


def advanced(state: State, now: float) -> State:
    """Draw every conclusion of the check that is due."""
    course = state.checks.course
    if course is None or state.verdict is not None:
        return state
    present = {peer.report.agent for peer in living(state)}
    after = checking.advanced(checking.left(course, present), now)
    if after is course:
        return state
    state = _with(state, after)
    if after.rounds != course.rounds or after.stage is not course.stage:
        state = _retold(state, now)
    return _concluded(state, after, now) if after.stage is Stage.OVER else state


def _with(state: State, course: Course, *, number: int | None = None) -> State:
    known = state.checks
    if course is known.course:
        return state
    checks = dataclasses.replace(known, course=course, tasks=course.task, number=known.number if number is None else number)
    return dataclasses.replace(state, checks=checks)


def _retold(state: State, now: float) -> State:
    course = state.checks.course
    told = None if course is None else tell(course, now)
    return dataclasses.replace(state, checks=dataclasses.replace(state.checks, told=told))


def _why(state: State, ready: Sequence[Peer]) -> str:
    """Return why these nodes must be checked, "" where they need not."""
    if state.checks.told is None:
        return "before the first round"
    if _losses(state) - state.checks.losses:
        return "after a node was lost"
    fresh = sorted(peer.node for peer in ready if peer.report.agent not in state.checks.checked)
    return f"node {', '.join(map(str, fresh))} is new" if fresh else ""


def _losses(state: State) -> frozenset[IncidentId]:
    return frozenset(i.id for i in state.incidents if i.cause is Cause.NODE and i.id.attempt == state.fence.attempt)


def _seat(peer: Peer) -> Seat:
    report = peer.report
    return Seat(
        agent=report.agent,
        node=peer.node,
        incarnation=peer.incarnation,
        host=report.host,
        size=report.local_world_size,
    )


# --- When it is over -------------------------------------------------------------------------------------------------------


def _concluded(state: State, course: Course, now: float) -> State:
    told = tell(course, now)
    if not course.here:  # whoever comes next is checked from the beginning
        return dataclasses.replace(state, checks=dataclasses.replace(state.checks, course=None))
    state = telling.event(state, "node-check", sentence(told), now)
    for line in measured(told):
        state = telling.event(state, "node-check", line, now)
    if state.settings.check_only:
        return telling.verdict(_over(state, course, told), _report(told), now)
    if told.state is CheckState.FAILED:
        return telling.verdict(_over(state, course, told), _hopeless(told), now)
    for one in every_node(course):
        if one.verdict is NodeVerdict.FAULT or (one.verdict is NodeVerdict.STRAGGLER and state.settings.exclude_straggler):
            state = _exclude(state, course, one, now)
    state = _over(state, course, told)
    # What follows, a round or the wait for a replacement, has its whole time from here.
    return dataclasses.replace(state, forming_since=now, enough_since=None)


def _over(state: State, course: Course, told: NodeCheck) -> State:
    checked = state.checks.checked | {seat.agent for seat in course.seats}
    checks = dataclasses.replace(state.checks, course=None, told=told, checked=checked, losses=_losses(state))
    result = codec.to_json(told) if state.settings.check_only else state.result
    return dataclasses.replace(state, checks=checks, result=result)


def _exclude(state: State, course: Course, found: NodeFound, now: float) -> State:
    """Let a node leave that did not pass, so that another machine takes its place."""
    seat = next(seat for seat in course.seats if (seat.node, seat.incarnation) == (found.node, found.incarnation))
    peer = state.peers.get(seat.agent)
    if peer is None:
        return state
    rule = f"node check {course.number}: {found.verdict.value}"
    told = telling.node_incident(state, peer, "", now)
    culprit = None if told.culprit is None else dataclasses.replace(told.culprit, error=found.reason)
    told = dataclasses.replace(
        told,
        reason=f"node {found.node} on {found.host} did not pass the node check ({found.verdict.value}): {found.reason}",
        culprit=culprit,
        kind=FaultKind.HARDWARE,
        answer=Answer.RETRY_ELSEWHERE,
        rule=rule,
    )
    state = dataclasses.replace(telling.incident(state, told), away=state.away | {seat.agent})
    return telling.event(state, "sent-away", told.reason, now)


def _report(told: NodeCheck) -> Verdict:
    return Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message=sentence(told))


def _hopeless(told: NodeCheck) -> Verdict:
    first = next((one for one in told.nodes if one.reason), None)
    why = "" if first is None else f"; first error: node {first.node} on {first.host}: {first.reason}"
    who = "the node does not work" if told.count == 1 else f"no two of {told.count} nodes work together"
    return Verdict(outcome=Outcome.FAILED, reason="NodeCheckFailed", message=f"node check {told.number}: {who}{why}")
