"""Decide when the nodes are checked, and which nodes leave after a check. Pure; `check_run.py` is one check.

All nodes that wait are checked together when a round is about to be closed, and somebody among them was not checked yet (at
first nobody was; later a replacement was not), or a node was lost since. A fault of a process is no reason: the machines are
those that were checked.

A node at fault is sent away as one whose worker asks for another node is: it is replaced, and its machine is kept off. So is a
straggler where `exclude_straggler` says so. Where no two nodes work together the attempt ends (`NodeCheckFailed`): that is
nobody's machine. A job that is nothing but a check (`check_only`) ends well with what was found as its result.

The result is published in the status: nodes with verdict and reason, and links, short enough for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rallypoint.capabilities.base import (
    CoordinatorCapability,
    Effect,
    EndAttempt,
    RecordEvent,
    ReplaceNode,
    ReportedPeer,
    RestartForming,
    RoundView,
)
from rallypoint.capabilities.node_check import check_run as checking
from rallypoint.capabilities.node_check.check_run import CheckRun, Seat, Stage, standing
from rallypoint.capabilities.node_check.judging import FACTOR, Group, Standing
from rallypoint.capabilities.node_check.wire import PlanSection, ReplySection, ReportSection, StatusSection
from rallypoint.wire import codec
from rallypoint.wire.check import CheckState, Link, NodeCheck, NodeFound, NodeVerdict, measured
from rallypoint.wire.incident import Cause, IncidentId
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus, Outcome, Verdict

__all__ = ["NodeChecks", "State", "create"]

#: Largest numbers of nodes and links in a published result; those with the worst results come first.
_NODES, _LINKS = 96, 160

#: Characters of a reason.
_REASON = 120

_ORDER = (NodeVerdict.FAULT, NodeVerdict.UNKNOWN, NodeVerdict.STRAGGLER, NodeVerdict.GOOD)


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of the checks of an attempt.

    Attributes:
        course: the running check; None if there is none.
        told: the published result of it, or of the last one.
        number: of the last check; `tasks` is the number of tasks so far.
        checked: agents that took part in a check that is over.
        losses: node incidents that were known then.
    """

    course: CheckRun | None = None
    told: NodeCheck | None = None
    number: int = 0
    tasks: int = 0
    checked: frozenset[str] = frozenset()
    losses: frozenset[IncidentId] = frozenset()


_UNCHECKED = State()


class NodeChecks(CoordinatorCapability[State]):
    """The coordinator's half of the capability."""

    name = "node_check"

    def __init__(self, settings: PlanSection) -> None:
        self._settings = settings

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> State:
        """Return the state of a coordinator that takes over: members were checked, and a running check begins again."""
        told = None if published is None or not continues else StatusSection.of(published).check
        if published is None or told is None or told.state is CheckState.RUNNING:
            return _UNCHECKED
        ours = (i.id for i in published.incidents if i.cause is Cause.NODE and i.id.attempt == published.fence.attempt)
        checked = frozenset(member.agent for member in published.world)
        return State(told=told, number=told.number, checked=checked, losses=frozenset(ours))

    def on_report(self, state: State, report: AgentReport, before: AgentReport | None, view: RoundView, now: float) -> State:
        """Return the state with the result of a node's probe."""
        said = None if state.course is None else ReportSection.of(report).check
        if state.course is None or said is None:
            return state
        return _with(state, checking.heard(state.course, report.agent, said, now))

    def holds_round(self, state: State) -> bool:
        """Return whether a check runs."""
        return state.course is not None

    def before_round(
        self, state: State, view: RoundView, ready: Sequence[ReportedPeer], now: float
    ) -> tuple[State, Sequence[Effect]]:
        """Begin a check if one of these nodes must be checked."""
        settings = self._settings
        if settings.check_level == 0:
            return state, ()
        # Agents of an earlier version have no probe and join unchecked.
        stores = {peer.report.agent: said.store for peer in ready if (said := ReportSection.of(peer.report).check) is not None}
        able = [peer for peer in ready if peer.report.agent in stores]
        reason = _why(state, view, able)
        if not able or not reason:
            return state, ()
        course = CheckRun(
            number=state.number + 1,
            term=view.fence.term,
            level=settings.check_level,
            reason=reason,
            started_at=now,
            limit=settings.check_timeout,
            seats=tuple(_seat(peer) for peer in sorted(able, key=lambda peer: peer.node)),
            all_pairs=settings.check_all_pairs,
            exclude_straggler=settings.exclude_straggler,
            task=state.tasks,
            stores=stores,
        )
        state = _with(state, checking.begun(course, now), number=course.number)
        text = f"node check {course.number} of {len(able)} nodes started ({reason})"
        return _retold(state, now), (RecordEvent(kind="node-check", detail=text),)

    def after_losses(self, state: State, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Continue the check; an agent that is gone ends the tasks of its group."""
        course = state.course
        if course is None:
            return state, ()
        present = {peer.report.agent for peer in view.peers.values() if peer.report.state is not AgentState.LEAVING}
        after = checking.advanced(checking.left(course, present), now)
        if after is course:
            return state, ()
        state = _with(state, after)
        if after.rounds != course.rounds or after.stage is not course.stage:
            state = _retold(state, now)
        return self._concluded(state, after, view, now) if after.stage is Stage.OVER else (state, ())

    def reply_for_waiting(self, state: State, report: AgentReport) -> ReplySection | None:
        """Return the task for an agent that has not begun it."""
        course = state.course
        task = None if course is None else checking.asked(course, report.agent, ReportSection.of(report).check)
        return None if task is None else ReplySection(check=task)

    def reply_key(self, state: State) -> int:
        """Return the number of the last task."""
        return 0 if state.course is None else state.course.task

    def next_deadline(self, state: State) -> float | None:
        """Return when the running check changes without a report."""
        return None if state.course is None else checking.due(state.course)

    def to_status(self, state: State, view: RoundView) -> StatusSection:
        """Return the result of the last check, which may still run."""
        return StatusSection(check=state.told)

    # --- The end of a check ------------------------------------------------------------------------------------------------

    def _concluded(self, state: State, course: CheckRun, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        told = _tell(course, now)
        if not course.here:  # the next agents are checked from the beginning
            return dataclasses.replace(state, course=None), ()
        lines = tuple(RecordEvent(kind="node-check", detail=line) for line in (_sentence(told), *measured(told)))
        if self._settings.check_only:
            end = EndAttempt(verdict=_report(told), result=codec.to_json(told))
            return _over(state, course, told, _losses(view)), (*lines, end)
        if told.state is CheckState.FAILED:
            return _over(state, course, told, _losses(view)), (*lines, EndAttempt(verdict=_hopeless(told)))
        replaced = tuple(self._replaced(course, view))
        losses = _losses(view) | {_loss(view, view.peers[one.agent]) for one in replaced}
        # The next round, or the wait for a replacement, has all of its time from here.
        return _over(state, course, told, losses), (*lines, *replaced, RestartForming())

    def _replaced(self, course: CheckRun, view: RoundView) -> Iterator[ReplaceNode]:
        """Yield the nodes that did not pass and are still there."""
        bad = {NodeVerdict.FAULT} | ({NodeVerdict.STRAGGLER} if self._settings.exclude_straggler else set())
        for found in _every_node(course):
            seat = next(seat for seat in course.seats if (seat.node, seat.incarnation) == (found.node, found.incarnation))
            if found.verdict in bad and seat.agent in view.peers:
                yield _replace(seat, course, found)


def create(plan: Plan) -> NodeChecks:
    """Return the coordinator's half; at `check_level` 0 it checks no node."""
    return NodeChecks(PlanSection.of(plan))


def _with(state: State, course: CheckRun, *, number: int | None = None) -> State:
    if course is state.course:
        return state
    return dataclasses.replace(state, course=course, tasks=course.task, number=state.number if number is None else number)


def _retold(state: State, now: float) -> State:
    return dataclasses.replace(state, told=None if state.course is None else _tell(state.course, now))


def _why(state: State, view: RoundView, ready: Sequence[ReportedPeer]) -> str:
    """Return why these nodes must be checked, "" if they need no check."""
    if state.told is None:
        return "before the first round"
    if _losses(view) - state.losses:
        return "after a node was lost"
    fresh = sorted(peer.node for peer in ready if peer.report.agent not in state.checked)
    return f"new nodes: {', '.join(map(str, fresh))}" if fresh else ""


def _losses(view: RoundView) -> frozenset[IncidentId]:
    return frozenset(i.id for i in view.incidents if i.cause is Cause.NODE and i.id.attempt == view.fence.attempt)


def _loss(view: RoundView, peer: ReportedPeer) -> IncidentId:
    """Return the id of the incident that records the replacement of a node."""
    return IncidentId(attempt=view.fence.attempt, round=0, node=peer.node, sequence=peer.incarnation)


def _seat(peer: ReportedPeer) -> Seat:
    report = peer.report
    return Seat(
        agent=report.agent,
        node=peer.node,
        incarnation=peer.incarnation,
        host=report.host,
        size=report.local_world_size,
    )


def _over(state: State, course: CheckRun, told: NodeCheck, losses: frozenset[IncidentId]) -> State:
    checked = state.checked | {seat.agent for seat in course.seats}
    return dataclasses.replace(state, course=None, told=told, checked=checked, losses=losses)


def _replace(seat: Seat, course: CheckRun, found: NodeFound) -> ReplaceNode:
    return ReplaceNode(
        agent=seat.agent,
        reason=f"node {found.node} on {found.host} did not pass the node check ({found.verdict.value}): {found.reason}",
        error=found.reason,
        rule=f"node check {course.number}: {found.verdict.value}",
    )


def _report(told: NodeCheck) -> Verdict:
    return Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message=_sentence(told))


def _hopeless(told: NodeCheck) -> Verdict:
    first = next((one for one in told.nodes if one.reason), None)
    why = "" if first is None else f"; first error: node {first.node} on {first.host}: {first.reason}"
    who = "the node failed" if told.count == 1 else f"no two of the {told.count} nodes can exchange data"
    return Verdict(outcome=Outcome.FAILED, reason="NodeCheckFailed", message=f"node check {told.number}: {who}{why}")


def _tell(course: CheckRun, now: float) -> NodeCheck:
    """Return the published form of a check at `now`."""
    over, nodes, links = course.stage is Stage.OVER, _every_node(course), _links(course)
    good = any(one.verdict in (NodeVerdict.GOOD, NodeVerdict.STRAGGLER) for one in nodes)
    state = CheckState.RUNNING if not over else CheckState.PASSED if good else CheckState.FAILED
    return NodeCheck(
        number=course.number,
        level=course.level,
        state=state,
        reason=course.reason,
        started_at=course.started_at,
        finished_at=now if over else None,
        rounds=course.rounds,
        count=len(nodes),
        nodes=tuple(nodes[:_NODES]),
        links=tuple(links[:_LINKS]),
        left_out=max(0, len(nodes) - _NODES) + max(0, len(links) - _LINKS),
        whole=course.whole,
    )


def _every_node(course: CheckRun) -> list[NodeFound]:
    """Return the result of each node; nodes that did not pass come first."""
    found = standing(course)
    return sorted((_node(course, found, i) for i in course.here), key=lambda one: (_ORDER.index(one.verdict), one.node))


def _sentence(told: NodeCheck) -> str:
    """Return one line with the result of a check."""
    bad = [
        f"{word} {', '.join(str(one.node) for one in named)}"
        for word, verdict in (
            ("faulty:", NodeVerdict.FAULT),
            ("slow:", NodeVerdict.STRAGGLER),
            ("no result:", NodeVerdict.UNKNOWN),
        )
        if (named := told.named(verdict))
    ]
    rounds = f"{told.rounds} round{'' if told.rounds == 1 else 's'}"
    return f"node check {told.number}: {told.count} nodes, {rounds}; {'; '.join(bad) or 'all passed'}"


def _node(course: CheckRun, found: Standing, index: int) -> NodeFound:
    seat = course.seats[index]
    verdict = _verdict(found, index)
    return NodeFound(
        node=seat.node,
        incarnation=seat.incarnation,
        host=seat.host,
        verdict=verdict,
        compute=_figures(found.compute.get(index)),
        transfer=_figures(found.transfer.get(index)),
        reason=_shortened(_reason(course, found, index, verdict)),
    )


def _verdict(found: Standing, index: int) -> NodeVerdict:
    if index in found.fault:
        return NodeVerdict.FAULT
    if index in found.slow:
        return NodeVerdict.STRAGGLER
    return NodeVerdict.GOOD if index in found.good else NodeVerdict.UNKNOWN


def _reason(course: CheckRun, found: Standing, index: int, verdict: NodeVerdict) -> str:
    error = course.errors.get(index, "")
    if verdict is NodeVerdict.FAULT:
        return error or "the test process of this node failed"
    if verdict is NodeVerdict.UNKNOWN:
        return error
    if verdict is NodeVerdict.STRAGGLER:
        return "; ".join(_slow_parts(found, index))
    return ""


def _slow_parts(found: Standing, index: int) -> list[str]:
    parts = (
        ("compute", found.compute.get(index, 0.0), found.usual_compute),
        ("data exchange", found.transfer.get(index, 0.0), found.usual_transfer),
    )
    return [
        f"{word} took {seconds / usual:.1f} times the median of {1000 * usual:.3g} ms"
        for word, seconds, usual in parts
        if usual > 0 and seconds > FACTOR * usual
    ]


def _links(course: CheckRun) -> list[Link]:
    """Return each pair once, with its best measurement; the slowest pairs come first."""
    best: dict[Group, Link] = {}
    for played in course.history:
        if len(played.group) < 2:
            continue
        nodes = tuple(sorted(course.seats[i].node for i in played.group))
        link = Link(nodes=nodes, bandwidth=_figures(played.bandwidth), latency=_figures(played.latency))
        known = best.get(nodes)
        if known is None or link.bandwidth > known.bandwidth:
            best[nodes] = link
    return sorted(best.values(), key=lambda link: (link.bandwidth, link.nodes))


def _figures(value: float | None) -> float:
    return 0.0 if value is None else float(f"{value:.4g}")


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
