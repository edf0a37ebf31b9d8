"""Whatever a job leaves, its trigger delivers one event that Airflow's database takes."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from airflow.sdk.serde import serialize
from hypothesis import given

from rallypoint.provider.claim import End, Ending
from rallypoint.provider.delivery import EVENT_LIMIT, ending_event, finding_event
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.watching import JobConditionTrigger
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.status import JobStatus, Outcome, Progress, Verdict
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.records import succeeded
from tests.provider.triggers import Trigger, ending, submitted
from tests.wire.payloads import TEXTS, VALUES, parsed


class Hostile:
    """Raises from everything that could show it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@given(VALUES, TEXTS)
def test_an_ending_of_any_job_is_an_event(value: object, text: str) -> None:
    """Its summary and its text are cleaned, and the task reads what was sent."""
    ended = Ending(end=End.SUCCEEDED, name="digits", summary={"job": "digits", "result": value}, text=text)

    event = ending_event(ended)

    assert parsed(json.dumps(event, allow_nan=False)) == serialize(event) == event
    assert Ending.from_event(event).end is End.SUCCEEDED
    assert ending_event(Ending.from_event(event)) == event


@given(VALUES, TEXTS)
def test_a_finding_of_any_job_is_an_event(value: object, text: str) -> None:
    """For sensors alike."""
    event = finding_event(Finding(found=Found.MET, text=text, values={"metrics": value}))

    assert parsed(json.dumps(event, allow_nan=False)) == serialize(event) == event
    assert Finding.from_event(event).found is Found.MET


def test_an_event_that_is_too_large_is_delivered_without_what_makes_it_so() -> None:
    """How the job ended arrives all the same, with a mark in the place of what is missing."""
    large = {"job": "digits", "phase": "Succeeded", "result": ["x" * 1000] * 1000, "metrics": {"loss": 1.0}, "checkpoint": ""}

    event = ending_event(Ending(end=End.SUCCEEDED, name="digits", summary=large, text="y" * EVENT_LIMIT))
    found = finding_event(Finding(found=Found.MET, text="met", values=large))

    assert (event["end"], event["summary"]["phase"], event["summary"]["checkpoint"]) == ("succeeded", "Succeeded", "")
    assert event["summary"]["result"].startswith("… [not delivered")
    assert (found["found"], found["text"], found["values"]) == ("met", "met", {})
    assert max(len(json.dumps(event)), len(json.dumps(found))) < EVENT_LIMIT


def test_an_event_that_cannot_be_written_is_replaced_by_one_that_says_so() -> None:
    """Whatever the value does when it is asked."""
    summary: Any = {"uid": ["x" * 1000] * 1000}

    event = ending_event(Ending(end=End.SUCCEEDED, name="digits", summary=summary))

    assert event["end"] == "error"
    assert event["text"] == "the trigger could not send the end state of job digits (succeeded)"
    assert ending_event(Ending(end=End.FAILED, name="digits", summary={"result": Hostile()}))["summary"] == {
        "result": "<Hostile>"
    }


class Reporting(FakeBackend):
    """Every attempt ends well, and its script reports what it is given here."""

    def __init__(self, progress: Progress, result: object) -> None:
        super().__init__(verdict=SUCCESS)
        self.reports = {"progress": progress, "result": result}

    async def status(self, name: str) -> JobStatus | None:
        status = await super().status(name)
        return None if status is None else dataclasses.replace(status, **self.reports)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "result"),
    [
        pytest.param({"loss": math.nan}, None, id="a metric that is NaN"),
        pytest.param({"loss": -math.inf}, {"best": math.inf}, id="infinite"),
        pytest.param({"\x00\ud800": 1.0}, "\x00", id="names and results with what no database takes"),
        pytest.param({}, 10**400, id="a large result"),
        pytest.param({"__classname__": 1.0}, {"a": [{"__id__": 1, "__type": "dag"}]}, id="names of Airflow's serializers"),
    ],
)
async def test_the_trigger_of_a_job_delivers_what_it_reported(metrics: dict[str, float], result: object) -> None:
    """The job has succeeded, so does its task."""
    backend = await submitted(Reporting(Progress(step=3, metrics=metrics, checkpoint="/\udcff"), result))

    (event,) = [event async for event in Trigger(backend).run()]

    parsed(json.dumps(serialize(event.payload), allow_nan=False))
    assert (event.payload["end"], event.payload["summary"]["phase"]) == ("succeeded", "Succeeded")


@pytest.mark.parametrize(
    "message", ["\x00", "\ud800", "\x1b[2J", "x" * 1_000_000], ids=["NUL", "half a pair", "escape", "long"]
)
async def test_the_trigger_of_a_failed_job_delivers_its_error(message: str) -> None:
    """`raise RuntimeError(message)`."""
    verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message=f"RuntimeError: {message}")

    (event,) = [event async for event in Trigger(await submitted(FakeBackend(verdict=verdict))).run()]

    parsed(json.dumps(event.payload, allow_nan=False))
    assert event.payload["end"] == "failed"
    assert "RuntimeError: " in event.payload["text"]


async def test_an_exception_that_nobody_expected_is_a_failed_event() -> None:
    """Of the training trigger, where a retry adopts the job; and of a sensor's."""
    found = await ending(Trigger(ZeroDivisionError("oops\x00")))

    assert (found.end, found.text) == (End.ERROR, "supervision of job digits failed: ZeroDivisionError: oops\\x00")

    class Broken(JobConditionTrigger):
        def open_backend(self) -> Any:
            raise ZeroDivisionError("oops")

    trigger = Broken(condition={"kind": "state", "phase": "Running"}, job_name="digits", backend="local")
    (event,) = [event async for event in trigger.run()]
    assert event.payload["found"] == "error"
    assert event.payload["text"] == "watching the job failed: ZeroDivisionError: oops"


def test_a_record_that_another_version_wrote_with_bare_words_still_ends_its_task() -> None:
    """Its supervisor may have been older."""
    text = succeeded().to_json().replace('"accuracy": 0.97', '"accuracy": NaN')

    assert summarize(story_of(JobRecord.from_json(text), None, now=200.0))["metrics"] == {"accuracy": "NaN"}
