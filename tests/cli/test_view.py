from __future__ import annotations

import dataclasses

import pytest

from rallypoint.cli.document import JobDocument, SupervisorSeen
from rallypoint.cli.view import overview, view
from rallypoint.report.format import clock_time
from rallypoint.report.model import Mood
from rallypoint.supervision.record import ConditionType, JobRecord, Phase, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.plan import OrphanPolicy
from rallypoint.wire.pre_check import PreCheck, PreCheckState
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobState, JobStatus, Outcome
from tests.cli.samples import (
    HOLDER,
    NOW,
    PLAN,
    START,
    ZONE,
    begun,
    member,
    node_fault,
    over,
    process_fault,
    submitted,
    training,
)


def show(record: JobRecord, status: JobStatus | None = None, **options):
    return view(record, status, PLAN, NOW, zone=ZONE, **options)


def forming(*waiting: int) -> JobStatus:
    members = tuple(member(node) for node in waiting)
    return dataclasses.replace(training(), state=JobState.FORMING, world=(), ranks=(), waiting=members)


def resetting(*, gone: bool) -> JobRecord:
    record = dataclasses.replace(begun(phase=Phase.RESETTING), clock=100.0)
    if gone:
        record = record.with_condition(ConditionType.RESOURCES_DEPLOYED, "Resetting", value=False)
    return dataclasses.replace(record, clock=110.0, last_now=NOW - 10, retries=1)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        pytest.param([("my.Disk", "passed", 2, ""), ("my.N", "bypassed", 0, "")], "my.Disk passed, my.N bypassed", id="over"),
        pytest.param([("my.Disk", "checking", 3, "full")], "my.Disk checking, 3 tries: full", id="not content"),
        pytest.param([("my.Disk", "waiting", 0, "")], "my.Disk has not run yet", id="not yet"),
    ],
)
def test_pre_checks_are_shown(told, text):
    """Which operator training waits for; or what became of all."""
    checks = tuple(PreCheck(operator=o, state=PreCheckState(s), tries=n, message=m) for o, s, n, m in told)
    shown = show(begun(), replaced(forming(0), pre_checks=checks))

    assert [fact.text for fact in shown.details if fact.label == "pre-check"] == [text]
    assert not [fact for fact in show(begun(), forming(0)).details if fact.label == "pre-check"]


@pytest.mark.parametrize(
    ("record", "status", "phase", "summary", "mood"),
    [
        pytest.param(submitted(), None, "Submitted", "waiting for a supervisor", Mood.BUSY, id="just submitted"),
        pytest.param(begun(phase=Phase.RESUMING), None, "Resuming", "starting 2 nodes", Mood.BUSY, id="starting"),
        pytest.param(begun(), None, "Running", "waiting for the coordinator", Mood.BUSY, id="no word yet"),
        pytest.param(begun(), forming(0), "Running", "1 of 1:2 nodes have joined", Mood.BUSY, id="forming"),
        pytest.param(begun(), training(), "Running", "training on 2 of 2 nodes", Mood.GOOD, id="training"),
        pytest.param(begun(), training(nodes=1), "Running", "training on 1 of 2 nodes", Mood.GOOD, id="degraded"),
        pytest.param(resetting(gone=False), training(), "Resetting", "cleaning up attempt 1", Mood.BUSY, id="clearing away"),
        pytest.param(resetting(gone=True), None, "Resetting", "attempt 2 starts in 1m 10s", Mood.BUSY, id="pausing"),
        pytest.param(over(outcome=Outcome.SUCCEEDED), None, "Succeeded", "all ranks succeeded", Mood.GOOD, id="succeeded"),
        pytest.param(
            over(outcome=Outcome.SUCCEEDED, released=False),
            None,
            "Succeeded",
            "all ranks succeeded; stopping nodes",
            Mood.GOOD,
            id="ending",
        ),
        pytest.param(over(outcome=Outcome.FAILED), None, "Failed", "", Mood.BAD, id="failed"),
        pytest.param(begun(phase=Phase.TERMINATING), training(), "Terminating", "being deleted", Mood.QUIET, id="deleted"),
        pytest.param(
            dataclasses.replace(begun(phase=Phase.SUSPENDED), suspend=True),
            None,
            "Suspended",
            "until resumed",
            Mood.QUIET,
            id="suspended",
        ),
        pytest.param(begun(phase=Phase.SUSPENDED), None, "Suspended", "waiting for admission", Mood.QUIET, id="queued"),
        pytest.param(
            dataclasses.replace(begun(phase=Phase.SUSPENDING), suspend=True),
            training(),
            "Suspending",
            "stopping its nodes",
            Mood.BUSY,
            id="suspending",
        ),
        pytest.param(
            dataclasses.replace(begun(), suspend=True),
            training(),
            "Running",
            "suspension requested",
            Mood.GOOD,
            id="suspension asked for",
        ),
        pytest.param(
            dataclasses.replace(begun(), deletion=True),
            training(),
            "Running",
            "deletion requested",
            Mood.GOOD,
            id="deletion asked for",
        ),
    ],
)
def test_a_phase_is_told_in_a_word_and_a_phrase(record, status, phase, summary, mood):
    """Each situation of a job has its own words and its own mood."""
    shown = show(record, status)

    assert (shown.phase, shown.summary, shown.mood) == (phase, summary, mood)


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(dataclasses.replace(training(), uid="u0"), id="of an earlier job of this name"),
        pytest.param(dataclasses.replace(training(), fence=Fence(attempt=7, term=9, round=1)), id="of another attempt"),
    ],
)
def test_a_status_that_belongs_elsewhere_is_left_out(stranger):
    """What another coordinator said is not true of this attempt."""
    assert show(begun(), stranger) == show(begun(), None)


def test_restarts_are_counted_by_rank_and_never_beyond_the_budget():
    """A fault that nobody answered is an incident, but no restart."""
    status = dataclasses.replace(training(), incidents=tuple(process_fault(number=number) for number in range(1, 6)))
    shown = show(begun(), status)

    assert [fact.text for fact in shown.figures if fact.label == "restarts"] == ["3 of 3"]
    assert [row.cells[6] for row in shown.nodes.rows] == ["0", "0", "0", "3"]
    assert len(shown.incidents.rows) == 5


def test_while_a_job_is_reset_its_next_attempt_is_counted_in():
    """The retry that is to come is spent already, but the attempt that failed was not the last."""
    attempts = {fact.label: fact.text for fact in show(resetting(gone=True)).figures}

    assert (attempts["attempt"], attempts["resets"]) == ("1 of 4", "1 of 3")
    assert {row.cells[3] for row in show(resetting(gone=True)).nodes.rows} == {"ended"}
    assert {row.cells[3] for row in show(resetting(gone=False)).nodes.rows} == {"ending"}


def test_a_node_of_the_world_whose_workers_are_not_there_yet_is_starting():
    """Between two rounds nobody trains."""
    assert {row.cells[3] for row in show(begun(), dataclasses.replace(training(), ranks=())).nodes.rows} == {"starting"}


def test_a_lost_node_is_told_and_its_replacement_has_a_higher_incarnation():
    """While nothing is there the slot is lost; then its next incarnation starts."""
    lost = begun().with_slot(Slot(node=1, lost_clock=60.0))
    replaced = begun().with_slot(Slot(node=1, incarnation=2))

    assert [row.cells[:4] for row in show(lost, training(nodes=1)).nodes.rows][-1] == ("1", "1", "-", "lost")
    assert [row.cells[:4] for row in show(replaced, training()).nodes.rows][-1] == ("1", "2", "-", "starting")


def test_numbers_of_processes_that_have_ended_are_not_shown():
    """By then another process may have the number."""
    rows = show(over(outcome=Outcome.SUCCEEDED), training()).nodes.rows

    assert {row.cells[3] for row in rows} == {"ended"}
    assert {row.cells[-1] for row in rows} == {"-"}


def test_large_worlds_have_a_row_for_each_node():
    """Ranks and steps of a node are then told as a range."""
    status = training(size=4)
    late = (dataclasses.replace(status.ranks[0], step=149), *status.ranks[1:])

    rows = show(begun(), dataclasses.replace(status, ranks=late), by_node=True).nodes.rows

    assert [row.cells for row in rows] == [
        ("0", "1", "ada", "training", "0-3", "149-150", "0"),
        ("1", "1", "ada", "training", "4-7", "150", "1"),
    ]


COORDINATOR = Incident(
    id=IncidentId(attempt=1, round=0, sequence=2),
    cause=Cause.COORDINATOR,
    rung=Rung.RECOVER,
    reason="the coordinator of term 2 was lost",
    detected_at=START + 5,
)
SCALE = dataclasses.replace(
    COORDINATOR, cause=Cause.SCALE, id=IncidentId(attempt=1, round=1, node=1), rung=Rung.ELASTIC_TRAINING
)


@pytest.mark.parametrize(
    ("incident", "cells"),
    [
        pytest.param(
            process_fault(),
            ("14:00:40", "process", "rank 3 node 1: SIGKILL", "restart-workers", "3.2 s", "40"),
            id="a worker, healed",
        ),
        pytest.param(
            process_fault(healed=False),
            ("14:00:40", "process", "rank 3 node 1: SIGKILL", "restart-workers", "no", "-"),
            id="a worker, not healed yet",
        ),
        pytest.param(node_fault(), ("14:01:00", "node", "node 1: lost", "recover", "no", "-"), id="a node"),
        pytest.param(COORDINATOR, ("14:00:05", "coordinator", "term 2", "recover", "-", "-"), id="a coordinator heals nobody"),
        pytest.param(SCALE, ("14:00:05", "scale", "node 1", "elastic-training", "-", "-"), id="a node that left on purpose"),
    ],
)
def test_an_incident_is_a_row(incident, cells):
    """When, cause, culprit, rung, healed after, steps lost."""
    (row,) = show(dataclasses.replace(begun(), incidents=(incident,))).incidents.rows

    assert row.cells == cells


def test_incidents_are_told_oldest_first_and_once():
    """The coordinator and the record tell the same fault; it is one row."""
    record = dataclasses.replace(begun(), incidents=(process_fault(healed=False), COORDINATOR))

    rows = show(record, training()).incidents.rows

    assert [row.cells[:2] for row in rows] == [("14:00:05", "coordinator"), ("14:00:40", "process")]
    assert rows[1].cells[4] == "3.2 s"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        pytest.param(START, "14:00:00", id="today"),
        pytest.param(START - 86400, "01-01 14:00", id="yesterday"),
    ],
)
def test_times_have_a_date_where_it_is_another_day(at, text):
    """A job may run for weeks."""
    assert clock_time(at, NOW, ZONE) == text


def test_the_table_of_jobs_has_a_row_for_each():
    """Name, phase, attempt, nodes, step, restarts, age, owner."""
    jobs = (
        JobDocument(record=begun(), plan=PLAN, status=training()),
        JobDocument(record=dataclasses.replace(submitted(), deletion=True, owner="task-7"), plan=PLAN),
    )

    assert [row.cells for row in overview(jobs, NOW).rows] == [
        ("digits", "Running", "1/4", "2/2", "150", "1/3", "2m 13s", "cli"),
        ("digits", "Terminating", "-", "-", "-", "0/3", "2m 13s", "task-7"),
    ]
    assert (overview((), NOW).rows, overview((), NOW).empty) == ((), "no jobs")


HELD = dataclasses.replace(begun(), holder=HOLDER)
STOPPING = dataclasses.replace(PLAN, orphan_policy=OrphanPolicy.STOP)


def told_of_supervision(record, supervisor, plan=PLAN):
    shown = view(record, None, plan, NOW, supervisor=supervisor, zone=ZONE)
    return [(fact.label, fact.text) for fact in shown.details if fact.label in ("supervisor", "last supervisor", "orphan")]


def test_who_supervises_is_told():
    """Its name, process and host, and since when; with what keeps it from its work."""
    alive, waiting = SupervisorSeen(alive=True), SupervisorSeen(alive=True, note="waiting for free disk space")

    assert told_of_supervision(HELD, alive) == [
        ("supervisor", "rallypoint supervise (process 9992 on ada) since 14:00:01 (2m 12s)")
    ]
    assert told_of_supervision(HELD, waiting)[0][1].endswith("(2m 12s); waiting for free disk space")


@pytest.mark.parametrize(
    ("plan", "orphan"),
    [
        pytest.param(PLAN, "the job continues without a supervisor", id="continue"),
        pytest.param(STOPPING, "the job stops after 1h 00m without a supervisor", id="stop"),
    ],
)
def test_that_nobody_supervises_is_told(plan, orphan):
    """Since when, who it was, how to take the job on, and what it does by itself."""
    assert told_of_supervision(HELD, SupervisorSeen(alive=False, lost_at=NOW - 61), plan) == [
        ("supervisor", "none since 14:01:12 (1m 01s); to supervise it: rallypoint supervise digits"),
        ("last supervisor", "rallypoint supervise (process 9992 on ada)"),
        ("orphan", orphan),
    ]


def test_nothing_is_told_of_supervision_where_there_is_none_to_be():
    """Before the first supervisor, and once the job is over."""
    ended = dataclasses.replace(over(outcome=Outcome.SUCCEEDED), holder=HOLDER)

    assert told_of_supervision(begun(), None) == []
    assert told_of_supervision(ended, SupervisorSeen(alive=False, lost_at=NOW)) == []
