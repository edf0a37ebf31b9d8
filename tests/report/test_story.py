from __future__ import annotations

import dataclasses
import datetime

import pytest

from rallypoint.report.format import time_of_day
from rallypoint.report.incidents import incident_lines, incidents_of
from rallypoint.report.story import story_of
from rallypoint.simulation.simulator import simulate
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.sections import replaced
from tests.wire.test_codec import PLAN

POLICY = Policy(min_nodes=2, max_nodes=2, node_replacements=1)

BOOM = {
    "node": 1,
    "local_rank": 0,
    "reason": "rank 3 on node 1 (host-1) exited with code 1",
    "kind": "application-error",
    "answer": "retry-here",
    "rule": "default rule for application-error",
    "culprit": {
        "node": 1,
        "host": "host-1",
        "rank": 3,
        "exit_code": 1,
        "error": "ValueError: boom",
        "log_tail": ["Traceback", "ValueError: boom"],
        "log_path": "/logs/rank-3.err",
    },
    "healed_at": 64,
    "last_step": 100,
    "resumed_step": 80,
}

#: A worker raises, then node 1 is lost twice: once it is replaced, then the job is reset.
STORY = {
    "startup": 20,
    "removal": 4,
    "until": 300,
    "steps": [
        {"at": 50, "step": 100},
        {"at": 60, "incidents": [BOOM]},
        {"at": 100, "pods": "=F(137 oom)"},
        {"at": 200, "pods": "=L"},
    ],
}


@pytest.fixture(scope="module")
def record():
    """The record at the end of the story: everything is deleted, and the next attempt waits for its pause."""
    return simulate(POLICY, STORY)[-1].record


@pytest.fixture
def told(record):
    """Its story, 10 seconds after the last turn."""
    now = record.last_now + 10
    decision = reconcile(record, remembered(record, POLICY), POLICY, now)
    return story_of(record, None, now=now, plan=replaced(PLAN, retry_limit=POLICY.retry_limit), decision=decision)


def _entry(told, words):
    (found,) = [entry for entry in told.entries if words in entry.text]
    return found


def test_an_incident_says_who_where_and_when(told):
    """Which rank on which host did what, and the first line of what it said."""
    entry = _entry(told, "rank 3 on node 1 (host-1) exited with code 1")

    assert (entry.at, entry.incident) == (60, 1)
    assert "error: ValueError: boom" in entry.more


def test_an_incident_says_what_was_decided_by_which_rule(told):
    """The verdict, its rule, the budget that paid, the rung that answered and what it cost."""
    judged, done = _entry(told, "rank 3").more[-2:]

    assert (
        judged == "verdict: application-error -> retry-here (default rule for application-error); charged to the process budget"
    )
    assert done.startswith("action: restart-workers")
    assert "training resumed after 4.0 s, 20 steps repeated (from 80 to 100)" in done


def test_the_story_is_told_in_order_and_nothing_twice(told):
    """Incidents stand among the phases, each loss once."""
    assert [entry.at for entry in told.entries] == sorted(entry.at for entry in told.entries)
    assert [entry.incident for entry in told.entries if entry.incident] == [1, 2, 3, 4]
    assert sum("was lost" in entry.text and entry.at == 200 for entry in told.entries) == 1


def test_what_comes_next_is_told_with_its_clock(told, record):
    """The next deadline, when it is over, what happens then and which field sets it."""
    (deadline,) = told.deadlines

    assert (deadline.clock, deadline.then) == ("retry-pause", "attempt 2 is deployed")
    assert deadline.setting == "fault_tolerance.retry_pause_period"
    assert deadline.at == pytest.approx(354)
    assert deadline.within == pytest.approx(354 - record.last_now - 10)


def test_a_turn_that_is_due_is_told(record):
    """Nobody has made a turn for long: what the next one will do is said, and nothing is done."""
    late = record.last_now + 119
    decision = reconcile(record, remembered(record, POLICY), POLICY, late)

    assert story_of(record, None, now=late, decision=decision).pending.startswith(
        "the next supervisor turn would change the phase to Resuming: attempt 2"
    )


def test_the_costs_are_added_up(told):
    """Faults, resets, steps trained again, and the seconds until everything trained again, none of them counted twice."""
    loss = told.loss

    assert (loss.faults, loss.free, loss.healed, loss.steps, loss.resets, loss.resets_left) == (3, 0, 2, 20, 1, 2)
    assert loss.seconds == pytest.approx(4 + 20 + (told.deadlines[0].at - told.deadlines[0].within - 200))


def test_without_a_plan_no_clock_is_invented(record):
    """The record alone does not know how long a pause is."""
    told = story_of(record, None, now=record.last_now)

    assert told.deadlines == ()
    assert "plan" in told.waits


@pytest.mark.parametrize(
    ("trace", "waits"),
    [
        pytest.param([{"at": 10, "pods": "RR"}], "no clock is running", id="training"),
        pytest.param([{"at": 0, "suspend": True}], "the job waits to be resumed", id="suspended"),
        pytest.param(
            {"removal": 1, "until": 999999, "steps": [{"at": 10, "pods": "RR"}, {"at": 20, "pods": "SS"}]},
            "the job has ended and holds no resources",
            id="over",
        ),
    ],
)
def test_a_job_without_clocks_says_what_it_waits_for(trace, waits):
    """Where nothing happens by itself, what it waits for is said."""
    frame = simulate(POLICY, trace)[-1]
    decision = reconcile(frame.record, remembered(frame.record, POLICY), POLICY, frame.at)

    assert waits in story_of(frame.record, None, now=frame.at, decision=decision).waits


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        pytest.param(Cause.PREEMPTION, "not charged to a budget", id="free"),
        pytest.param(Cause.HANG, "charged to the hang budget", id="hang"),
        pytest.param(Cause.RENDEZVOUS, "charged to the process budget", id="rendezvous"),
    ],
)
def test_every_cause_says_who_pays(record, cause, words):
    """Free causes are said to be free."""
    fault = Incident(id=IncidentId(attempt=1, round=9), cause=cause, rung=Rung.EXIT, reason="x", detected_at=1.0)
    lines = list(incident_lines(fault, 1))

    assert any(words in line for line in lines)


def test_one_incident_is_told_in_full(record):
    """Who, where, when, how it ended, what it said, where its log is, its last lines, and what was done."""
    text = "\n".join(incident_lines(incidents_of(record, None)[0], 1, zone=datetime.timezone.utc))

    for words in (
        "1970-01-01 00:01:00, attempt 1",
        "rank 3 on node 1 (host-1)",
        "exit code 1",
        "ValueError: boom",
        "/logs/rank-3.err",
        "Traceback",
        "default rule for",
    ):
        assert words in text


def test_the_status_of_another_attempt_tells_nothing(record):
    """What a coordinator of an earlier attempt has said is in the record already."""
    status = simulate(POLICY, [{"at": 10, "pods": "RR"}, {"at": 60, "incidents": [BOOM]}])[-1].record
    assert len(incidents_of(status, None)) == 1
    assert incidents_of(dataclasses.replace(record, incidents=()), None) == ()


def test_times_are_told_in_a_zone():
    """A time of day has its date: on-call engineers look back over days."""
    assert time_of_day(40.0, datetime.timezone.utc) == "1970-01-01 00:00:40"
