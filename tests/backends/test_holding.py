"""Who supervises a job: its name in the record, its one heartbeat, and what it does when the record vanishes."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from rallypoint.wire.status import Outcome
from tests.backends.driving import Inside, drive, submit
from tests.backends.fake import FakeBackend
from tests.backends.stage import FakeStage
from tests.waiting import eventually_async


@pytest.fixture
def place(tmp_path):
    return FakeStage(tmp_path)


async def test_the_record_names_who_supervises(place):
    """Its name, where it runs, its heartbeat and since when; and the heart beats as long as it does so."""
    await submit(place)
    beating = []

    def on_turn(snapshot):
        beating.append(dict(place.world.hearts))
        Inside(place, Outcome.SUCCEEDED)(snapshot)

    begun = place.world.clock.now
    await drive(place, on_turn)

    holder = place.world.record("digits").holder
    assert (holder.name, holder.host, holder.pid) == ("test", "here", 1)
    assert begun <= holder.since <= place.world.clock.now
    assert {holder.id: 1} in beating
    assert place.world.hearts == {}


async def test_who_takes_over_says_so(place):
    """The record names the new one, and its history the old one."""
    await submit(place)
    first = asyncio.ensure_future(drive(place, Inside(place)))
    await eventually_async(lambda: place.world.jobs["digits"].status)
    before = place.world.record("digits").holder
    first.cancel()
    await asyncio.wait([first])

    await drive(place, Inside(place, Outcome.SUCCEEDED), FakeBackend(place.world), holder="other")

    record = place.world.record("digits")
    told = [event.detail for event in record.history if event.kind == "supervisor"]
    assert record.holder.id != before.id
    assert told == ["other (process 1 on here) took over the supervision from test (process 1 on here)"]


async def test_a_process_that_takes_its_own_job_again_is_not_named_twice(place):
    """As after a suspension: nobody else has supervised the job."""
    await submit(place)
    first = asyncio.ensure_future(drive(place, Inside(place)))
    await eventually_async(lambda: place.world.jobs["digits"].status)
    first.cancel()
    await asyncio.wait([first])

    await drive(place, Inside(place, Outcome.SUCCEEDED), FakeBackend(place.world))

    assert [event for event in place.world.record("digits").history if event.kind == "supervisor"] == []


async def test_two_jobs_of_one_process_share_its_heart(place):
    """One heartbeat per process: both records name the same."""
    await submit(place)
    await place.backend.submit(place.backend.plan(place.job("other")), owner="ann")
    supervising = [
        asyncio.ensure_future(supervise(place.backend, name, holder="test", clock=place.world.clock))
        for name in ("digits", "other")
    ]
    await eventually_async(lambda: all(place.world.record(name).holder for name in ("digits", "other")))

    ids = {place.world.record(name).holder.id for name in ("digits", "other")}
    assert place.world.hearts == dict.fromkeys(ids, 2)
    for task in supervising:
        task.cancel()
    await asyncio.wait(supervising)
    assert len(ids) == 1


async def test_a_job_that_is_deleted_from_outside_is_over_at_once(place, caplog):
    """Nothing is created again, what is left of it is swept, and only then the loop ends."""
    await submit(place, nodes=2)
    inside = Inside(place)
    actions = []

    def on_turn(snapshot):
        inside(snapshot)
        if snapshot.record.phase is Phase.RUNNING and "digits" in place.world.jobs and place.world.jobs["digits"].status:
            place.delete_from_outside("digits")
            actions.append(list(place.world.done))

    assert await drive(place, on_turn) is None
    assert list(place.world.left.values()) == [0]
    assert place.world.done == actions[-1]
    assert "another process deleted the record of the job" in caplog.text


async def test_who_lets_a_job_go_says_so_though_its_heart_beats_for_another(place):
    """A lease rests on the heartbeat that the record names: one that beats for other jobs would keep it alive for ever."""
    await submit(place)
    await place.backend.submit(place.backend.plan(place.job("other")), owner="ann")
    first, other = (
        asyncio.ensure_future(supervise(place.backend, name, holder="test", clock=place.world.clock))
        for name in ("digits", "other")
    )
    await eventually_async(lambda: all(place.world.record(name).holder for name in ("digits", "other")))
    first.cancel()
    await asyncio.wait([first])

    holder, still = place.world.record("digits").holder, place.world.record("other").holder
    assert (holder.id, holder.heartbeat, holder.name) == ("", "", "test")
    assert place.world.hearts == {still.id: 1}

    again = asyncio.ensure_future(supervise(place.backend, "digits", holder="test", clock=place.world.clock))
    await eventually_async(lambda: place.world.record("digits").holder.id == still.id)
    for task in (other, again):
        task.cancel()
    await asyncio.wait([other, again])
