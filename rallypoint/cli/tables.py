"""The tables of nodes and of incidents. Pure."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rallypoint.cli.values import Column, Row, Table
from rallypoint.report.format import clock_time, describe_end, span
from rallypoint.report.incidents import RERUN, RESTARTED, ListedIncident, id_text
from rallypoint.report.model import Mood, Story
from rallypoint.supervision.record import ConditionType, JobRecord, Phase, Slot
from rallypoint.wire.check import NodeCheck, NodeVerdict
from rallypoint.wire.incident import Cause, Culprit, Incident
from rallypoint.wire.status import JobState, JobStatus, Member, RankStatus

__all__ = ["check_table", "incident_table", "node_table"]

_NODE = (
    Column(title="NODE", right=True, repeats=True),
    Column(title="INCARNATION", right=True, repeats=True),
    Column(title="HOST", shrinks=True, repeats=True),
    Column(title="STATE", repeats=True, colored=True),
)
_BY_RANK = (
    *_NODE,
    Column(title="RANK", right=True),
    Column(title="STEP", right=True),
    Column(title="RESTARTS", right=True),
    Column(title="PID", right=True),
)
_BY_NODE = (*_NODE, Column(title="RANKS"), Column(title="STEP", right=True), Column(title="RESTARTS", right=True))

_INCIDENTS = (
    Column(title="WHEN"),
    Column(title="CAUSE", colored=True),
    Column(title="CULPRIT", shrinks=True),
    Column(title="ACTION"),
    Column(title="RESUMED", right=True),
    Column(title="LOST STEPS", right=True),
)

_CHECK = (
    Column(title="NODE", right=True),
    Column(title="HOST", shrinks=True),
    Column(title="VERDICT", colored=True),
    Column(title="COMPUTE", right=True),
    Column(title="TRANSFER", right=True),
    Column(title="WHY", shrinks=True),
)

_VERDICTS = {
    NodeVerdict.GOOD: Mood.GOOD,
    NodeVerdict.STRAGGLER: Mood.BUSY,
    NodeVerdict.UNKNOWN: Mood.BAD,
    NodeVerdict.FAULT: Mood.BAD,
}

_MOODS = {
    "training": Mood.GOOD,
    "waiting": Mood.BUSY,
    "starting": Mood.BUSY,
    "done": Mood.QUIET,
    "ended": Mood.QUIET,
    "lost": Mood.BAD,
}

#: Causes that do not interrupt training.
_HARMLESS = (Cause.COORDINATOR, Cause.SCALE)

#: States in which the process of a rank no longer exists.
_OVER = ("done", "ended", "lost")


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A node of the current attempt: its slot, its agent if one has reported, and its workers."""

    slot: Slot
    member: Member | None
    state: str
    ranks: tuple[RankStatus, ...]
    restarts: Mapping[int, int]  # by local rank; -1 if no single rank was the cause

    @property
    def head(self) -> tuple[str, ...]:
        host = self.member.host if self.member else "-"
        return (str(self.slot.node), str(self.slot.incarnation), host, self.state)


def node_table(record: JobRecord, status: JobStatus | None, restarts: Iterable[Incident], *, by_node: bool) -> Table:
    """Return a row for each rank of each node, or for each node alone.

    `status` is of the current attempt, and `restarts` are the faults of that attempt for which workers were restarted.
    """
    faults = Counter((incident.id.node, incident.id.local_rank) for incident in restarts)
    places = [_place(record, status, slot, faults) for slot in record.slots]
    if by_node:
        return Table(columns=_BY_NODE, rows=tuple(_node_row(place) for place in places), empty="no nodes yet")
    return Table(columns=_BY_RANK, rows=tuple(row for place in places for row in _rank_rows(place)), empty="no nodes yet")


def incident_table(story: Story, now: float, *, zone: datetime.tzinfo | None = None) -> Table:
    """Return a row for each incident, oldest first, after those that the record keeps as counts."""
    ends = {id_text(incident.id): _culprit(incident) for incident in story.details}
    rows = (_incident_row(listed, ends.get(listed.id, "-"), now, zone) for listed in story.incidents)
    return Table(columns=_INCIDENTS, rows=tuple(rows), empty="no incidents")


def check_table(check: NodeCheck) -> Table:
    """Return a row for each node of a check, those that did not pass first."""
    rows = (
        Row(
            cells=(
                str(found.node),
                found.host,
                found.verdict.value,
                *(f"{1000 * seconds:.3g} ms" if seconds else "-" for seconds in (found.compute, found.transfer)),
                found.reason,
            ),
            mood=_VERDICTS[found.verdict],
        )
        for found in check.nodes
    )
    return Table(columns=_CHECK, rows=tuple(rows), empty="no nodes checked")


def _place(record: JobRecord, status: JobStatus | None, slot: Slot, faults: Mapping[tuple[int, int], int]) -> _Place:
    member = None if status is None else _member(status, slot)
    ranks = () if status is None or member is None else tuple(r for r in status.ranks if r.node == slot.node)
    restarts = {local_rank: count for (node, local_rank), count in faults.items() if node == slot.node}
    return _Place(slot=slot, member=member, state=_state(record, status, slot, member), ranks=ranks, restarts=restarts)


def _member(status: JobStatus, slot: Slot) -> Member | None:
    members = (*status.world, *status.waiting)
    return next((m for m in members if (m.node, m.incarnation) == (slot.node, slot.incarnation)), None)


def _state(record: JobRecord, status: JobStatus | None, slot: Slot, member: Member | None) -> str:
    if slot.lost_clock is not None:
        return "lost"
    if member is not None and member.done:
        return "done"
    if record.phase not in (Phase.RESUMING, Phase.RUNNING):
        return "ending" if record.condition(ConditionType.RESOURCES_DEPLOYED) else "ended"
    if status is None or member is None:
        return "starting"
    if status.state is not JobState.RUNNING or member not in status.world:
        return "waiting"
    return "training" if any(rank.node == slot.node for rank in status.ranks) else "starting"


def _rank_rows(place: _Place) -> Iterable[Row]:
    mood = _MOODS.get(place.state, Mood.BUSY)
    over = place.state in _OVER
    if not place.ranks:
        restarts = str(sum(place.restarts.values()))
        yield Row(cells=(*place.head, "-", "-", restarts, "-"), mood=mood)
    for index, rank in enumerate(place.ranks):
        restarts, pid = str(place.restarts.get(rank.local_rank, 0)), "-" if over else str(rank.pid)
        cells = (str(rank.rank), _number(rank.step), restarts, pid)
        yield Row(cells=(*place.head, *cells), mood=mood, continues=index > 0)


def _node_row(place: _Place) -> Row:
    numbers = [rank.rank for rank in place.ranks]
    ranks = _between(numbers)
    step = _between([rank.step for rank in place.ranks if rank.step is not None])
    restarts = str(sum(place.restarts.values()))
    return Row(cells=(*place.head, ranks, step, restarts), mood=_MOODS.get(place.state, Mood.BUSY))


def _incident_row(listed: ListedIncident, culprit: str, now: float, zone: datetime.tzinfo | None) -> Row:
    healed = _healed(listed)
    cells = (
        clock_time(listed.at, now, zone),
        listed.cause.value if listed.count == 1 else f"{listed.cause.value} x{listed.count}",
        culprit,
        listed.action or "-",
        healed,
        _number(listed.steps_lost),
    )
    return Row(cells=cells, mood=Mood.BUSY if healed == "no" else Mood.QUIET)


def _healed(listed: ListedIncident) -> str:
    if listed.seconds_lost is not None:
        return f"{'restarted ' if listed.recovered in (RESTARTED, RERUN) else ''}{span(listed.seconds_lost)}"
    return "-" if listed.cause in _HARMLESS or not listed.id else "no"


def _culprit(incident: Incident) -> str:
    told = incident.culprit
    if told is None and incident.cause is Cause.COORDINATOR:
        return f"term {incident.id.sequence}"
    if told is None:
        return f"node {incident.id.node}" if incident.id.node >= 0 else "-"
    if told.node < 0 and told.error:  # an instance of a simple role
        return told.error
    return f"{_who(told)}: {describe_end(told)}"


def _who(culprit: Culprit) -> str:
    # Short, because this is a table cell; `explain` also names the host.
    return f"node {culprit.node}" if culprit.rank < 0 else f"rank {culprit.rank} node {culprit.node}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _between(numbers: list[int]) -> str:
    if not numbers:
        return "-"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"
