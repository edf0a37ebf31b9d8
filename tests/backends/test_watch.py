"""Following a job that another process supervises."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.backends.contract import JobNotFoundError
from rallypoint.backends.requests import request_deletion
from rallypoint.backends.supervise import watch
from rallypoint.wire.status import Outcome
from tests.backends.driving import Inside, drive, submit
from tests.backends.fake import FakeBackend
from tests.backends.stage import FakeStage


@pytest.fixture
def place(tmp_path):
    return FakeStage(tmp_path)


async def test_watching_shows_every_change_and_ends_with_the_job(place):
    """Snapshots of one who does not hold the job, the last one of the released record."""
    await submit(place)
    driving = asyncio.ensure_future(drive(place, Inside(place, Outcome.SUCCEEDED)))

    seen = [snapshot async for snapshot in watch(FakeBackend(place.world), "digits")]

    assert seen[-1].record == await driving
    assert not any(snapshot.supervising for snapshot in seen)


async def test_watching_ends_when_the_job_is_deleted(place):
    """No error: that is an end, too."""
    await submit(place)
    await request_deletion(place.backend, "digits")
    seen = []
    async for snapshot in watch(FakeBackend(place.world), "digits"):
        seen.append(snapshot)
        await drive(place, None)

    assert len(seen) == 1


async def test_a_job_that_is_not_there_cannot_be_watched(place):
    """Its name may be mistyped."""
    with pytest.raises(JobNotFoundError, match="digit"):
        await anext(watch(place.backend, "digit"))
