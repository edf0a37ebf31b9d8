"""Budgets of a record are filled again once the job has earned it."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision.budget import Course
from rallypoint.supervision.charges import refilled
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Cause, Folded, Incident, IncidentId, Rung
from rallypoint.wire.plan import Refill
from rallypoint.wire.status import Progress

POLICY = Policy(min_nodes=1, max_nodes=1, node_refill=Refill(healthy_for=60.0))
LOST = Incident(
    id=IncidentId(attempt=1, round=1, node=0), cause=Cause.NODE, rung=Rung.RECOVER, reason="was lost", detected_at=1.0
)
COUNT = Folded(cause=Cause.NODE, attempt=1, node=0, count=3, first_at=1.0, last_at=2.0, last_clock=5.0)


def after(seconds: float, *, incidents: tuple[Incident, ...] = (), folded: tuple[Folded, ...] = ()) -> JobRecord:
    """Return the record of a job that has made healthy progress for this time since its last fault."""
    course = Course().after_fault()
    for clock, step in ((0.0, 1), (seconds / 2, 2), (seconds, 3)):
        course = course.reported(Progress(step=step), clock)
    record = JobRecord.new(name="digits", uid="u1", digest="d1", owner="cli", now=0.0)
    return dataclasses.replace(record, attempt=1, incidents=incidents, folded=folded, course=course)


@pytest.mark.parametrize(
    ("incidents", "folded"),
    [
        pytest.param((LOST,), (), id="an incident"),
        pytest.param((), (COUNT,), id="a count"),
        pytest.param((LOST,), (COUNT,), id="both"),
    ],
)
def test_what_was_spent_counts_no_more(incidents: tuple[Incident, ...], folded: tuple[Folded, ...]) -> None:
    """Incidents and counts of folded ones are marked, each also without the other, and the history says why."""
    record = refilled(after(60.0, incidents=incidents, folded=folded), POLICY, None)

    assert [incident.refilled for incident in record.incidents] == [True] * len(incidents)
    assert [count.refilled for count in record.folded] == [3] * len(folded)
    assert [(event.kind, event.detail) for event in record.history][1:] == [
        ("budget-refilled", "of lost nodes: 60 s of healthy progress, up to step 3")
    ]


def test_nothing_is_refilled_too_early() -> None:
    """Nor where there is nothing to refill."""
    early, nothing = after(59.0, incidents=(LOST,), folded=(COUNT,)), after(60.0)

    assert refilled(early, POLICY, None).incidents == (LOST,)
    assert refilled(early, POLICY, None).folded == (COUNT,)
    assert refilled(nothing, POLICY, None).history == nothing.history
