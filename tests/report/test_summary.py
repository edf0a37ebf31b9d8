from __future__ import annotations

import json

from rallypoint.report.story import story_of
from rallypoint.report.summary import XCOM_KEYS, summarize, xcoms
from rallypoint.wire.incident import Cause, Rung
from tests.provider.records import incident, record, status, succeeded


def test_a_summary_tells_the_whole_job():
    """What a downstream task wants to know is there, as plain JSON."""
    summary = summarize(story_of(succeeded(result={"digest": "a1"}), status(0, 1), now=200.0))

    assert [(row["cause"], row["action"]) for row in summary.pop("incidents")] == [("process", "restart-workers")]
    assert json.loads(json.dumps(summary)) == {
        "job": "digits",
        "uid": "uid-1",
        "phase": "Succeeded",
        "attempts": 1,
        "faults": 1,
        "restarts": 1,
        "steps_lost": 12,
        "step": 300,
        "metrics": {"accuracy": 0.97},
        "checkpoint": "/ckpt/step-300",
        "resumed_from": 140,
        "world_size": 4,
        "result": {"digest": "a1"},
        "duration": 20.5,
    }


def test_a_running_job_is_summarized_from_the_coordinators_last_word():
    """The record learns of progress only at an attempt's end."""
    assert summarize(story_of(record(), status(0, step=77), now=200.0))["step"] == 77


def test_a_status_of_another_job_of_that_name_counts_for_nothing():
    """A file that was left by a deleted job says nothing about its successor."""
    summary = summarize(story_of(record(), status(0, uid="another"), now=200.0))

    assert (summary["step"], summary["world_size"]) == (None, 0)


def test_only_faults_that_restarted_workers_count_as_restarts():
    """A lost coordinator restarts nobody."""
    free = incident(2, rung=Rung.RECOVER, cause=Cause.COORDINATOR)
    reset = incident(3, rung=Rung.RESET, cause=Cause.JOB)

    assert summarize(story_of(record(incidents=(incident(1), free, reset)), None, now=200.0))["restarts"] == 1


def test_xcom_gets_each_value_under_its_key_and_no_unknown_one():
    """A key without a value is left out."""
    assert xcoms(summarize(story_of(succeeded(), None, now=200.0))).keys() == XCOM_KEYS.keys() - {"roles"}
    assert "final_step" not in xcoms(summarize(story_of(record(), None, now=200.0)))
