"""What a finished task tells the rest of Airflow of its job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk import Asset

from rallypoint.operators.reporting import asset_extra, count
from rallypoint.provider.errors import TrainingFailed
from tests.operators.tasks import FAILURE, operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context


@dataclass
class Event:
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Metrics:
    """As much of Airflow's as is used."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def incr(self, name, number=1, *, tags):
        self.told.append((name, number, tags))

    def gauge(self, name, value, *, tags):
        self.told.append((name, value, tags))

    def timing(self, name, value, *, tags):
        self.told.append((name, value, tags))


def test_an_outlet_is_told_its_checkpoint_and_metrics():
    """Beside what the author of the DAG wrote there, which stays."""
    model = Asset("s3://models/digits")
    events = {model: Event({"team": "vision"})}

    operator(FakeBackend(verdict=SUCCESS), outlets=[model]).execute(context(FakeTask(), outlet_events=events))

    told = events[model].extra
    assert told["team"] == "vision"
    assert (told["rallypoint"]["checkpoint"], told["rallypoint"]["metrics"]) == ("/ckpt/step-300", {"accuracy": 0.97})
    assert told["rallypoint"]["step"] == 300
    assert "result" not in told["rallypoint"]


def test_a_job_that_failed_tells_its_outlets_nothing():
    """There is no event either."""
    model = Asset("s3://models/digits")
    events = {model: Event()}

    with pytest.raises(TrainingFailed):
        operator(FakeBackend(verdict=FAILURE), outlets=[model]).execute(context(FakeTask(), outlet_events=events))

    assert events[model].extra == {}


def test_metrics_say_how_jobs_end_and_what_they_lost():
    """A counter by end, the duration in milliseconds, and only numbers that are known."""
    metrics, tags = Metrics(), {"dag_id": "d", "task_id": "t"}
    summary = {"duration": 20.5, "step": 300, "world_size": 4, "steps_lost": 12, "restarts": 2, "faults": 0}

    count(metrics, summary, end="succeeded", dag_id="d", task_id="t")
    count(metrics, {}, end="deleted", dag_id="d", task_id="t")

    assert metrics.told == [
        ("rallypoint.job.succeeded", 1, tags),
        ("rallypoint.job.duration", 20500.0, tags),
        ("rallypoint.job.final_step", 300, tags),
        ("rallypoint.job.world_size", 4, tags),
        ("rallypoint.job.steps_lost", 12, tags),
        ("rallypoint.job.restarts", 2, tags),
        ("rallypoint.job.deleted", 1, tags),
    ]
    assert asset_extra({"job": "a", "metrics": {}, "checkpoint": ""}) == {"job": "a"}
