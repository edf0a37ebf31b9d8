"""Times of a job may be any float: its script can write them into the files of the job."""

from __future__ import annotations

import dataclasses
import datetime
import math

import pytest

from rallypoint.cli.explain import Case, explanation
from rallypoint.report.format import clock_time, span, time_of_day
from tests.cli.samples import PLAN
from tests.plugin import scenes

UTC = datetime.timezone.utc


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e18])
def test_a_job_is_explained_whatever_its_times_are(at):
    """A date out of range was an error of `rallypoint explain`."""
    record, status = scenes.recovered()
    attempts = tuple(dataclasses.replace(attempt, started_at=at) for attempt in record.attempts)
    history = tuple(dataclasses.replace(event, at=at) for event in record.history)
    record = dataclasses.replace(record, created_at=at, attempts=attempts, history=history)

    assert list(explanation(Case(record=record, plan=PLAN, status=status, seen=None, now=at, holder="")))
    assert span(at)
    assert time_of_day(at, UTC)[:4] in ("1970", "9999")
    assert clock_time(at, 0.0, UTC)
