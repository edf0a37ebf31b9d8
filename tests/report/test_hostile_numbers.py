"""Times of a job may be any float: its script can write them into the files of the job."""

from __future__ import annotations

import dataclasses
import datetime
import math

import pytest

from rallypoint.cli.explain import Case, explanation
from rallypoint.report.format import clock_time, span, time_of_day
from rallypoint.report.page.values import Page
from rallypoint.report.page.view import page_of
from rallypoint.wire import codec
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.incident import Cause, Folded
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


def test_a_page_is_read_back_whatever_its_numbers_are():
    """The tab refuses a page with larger numbers, and shows nothing: an agent's start time, and sums of counts and steps."""
    record, status = scenes.recovered()
    assert status is not None
    most, least = WHOLE[1], WHOLE[0]
    world = tuple(dataclasses.replace(member, incarnation=most) for member in status.world)
    ranks = tuple(dataclasses.replace(one, step=(least, most)[place % 2]) for place, one in enumerate(status.ranks))
    incidents = tuple(dataclasses.replace(one, last_step=most, resumed_step=least) for one in status.incidents)
    folded = tuple(
        Folded(cause=Cause.NODE, attempt=one.id.attempt, node=world[0].node, count=most, first_at=1.0, last_at=2.0)
        for one in (*incidents, *incidents)
    )
    record = dataclasses.replace(record, incidents=incidents, folded=folded)
    status = dataclasses.replace(status, world=world, waiting=world[:1], ranks=ranks, incidents=incidents)

    page = page_of(record, status, now=scenes.START + 600, plan=PLAN)

    assert [node.incarnation for node in page.nodes][:1] == [most]
    assert codec.loads(Page, codec.dumps(page)) == page
