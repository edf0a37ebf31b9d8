"""Sensors in the triggerer: when their triggers fire, and what they share."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rallypoint.backends.contract import BackendError, Changes, JobNotFoundError
from rallypoint.provider.sensing.finding import Found
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.triggers import Trigger, ending
from tests.sensors.sensors import Desk, Watching, event_of, submit
from tests.waiting import eventually_async

TWO = {"kind": "rendezvous", "min_nodes": 2}
FAILED = {"kind": "state", "phase": "Failed"}


class Counting(FakeBackend):
    """Counts how often a job is followed, waited for and read, and in which way."""

    def __init__(self, **changes):
        super().__init__(**changes)
        self.followed = self.waits = self.loads = self.asked = self.read = 0

    @contextlib.asynccontextmanager
    async def changes(self, name):
        self.followed += 1
        async with super().changes(name) as changes:
            yield _Counted(self, changes)

    async def load(self, name):
        self.loads += 1
        return await super().load(name)

    async def status(self, name):
        self.asked += 1
        return await super().status(name)

    async def written(self, name):
        self.read += 1
        return await super().status(name)


class _Counted(Changes):
    def __init__(self, fake, changes):
        self.fake, self.changes = fake, changes

    async def wait(self, timeout):
        self.fake.waits += 1
        await self.changes.wait(timeout)


async def test_the_trigger_waits_for_the_rendezvous():
    """It fires once enough nodes train, and releases its backend."""
    fake = FakeBackend()
    waiting = asyncio.create_task(event_of(Watching(fake, condition=TWO)))
    await submit(fake)
    driving = asyncio.create_task(ending(Trigger(fake)))

    finding = await waiting

    assert (finding.found, finding.values["nodes"], fake.closed) == (Found.MET, 2, 1)
    fake.verdict = SUCCESS
    await driving


async def test_the_trigger_fires_when_waiting_has_become_useless():
    """The resumed sensor ends with the reason."""
    fake = FakeBackend(verdict=SUCCESS)
    await submit(fake)
    waiting = asyncio.create_task(event_of(Watching(fake, condition=FAILED)))
    await ending(Trigger(fake))

    finding = await waiting

    assert (finding.found, finding.text) == (Found.IMPOSSIBLE, "job digits is Succeeded, so Failed is no longer possible")


async def test_a_trigger_finds_the_job_of_another_task_when_it_is_named():
    """It may start long before the task that submits the job."""
    fake, desk = FakeBackend(verdict=SUCCESS), Desk()
    await submit(fake)
    await ending(Trigger(fake))
    trigger = Watching(fake, desk, job_task_id="train", condition={"kind": "state", "phase": "Succeeded"})
    waiting = asyncio.create_task(event_of(trigger))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    desk.names["train", -1] = "digits"

    assert (await waiting).found is Found.MET


async def test_a_trigger_ends_when_the_other_task_will_name_no_job():
    """A task that was skipped submits nothing."""
    trigger = Watching(FakeBackend(), Desk(states={("train", -1): "skipped"}), job_task_id="train", condition=FAILED)

    assert (
        await event_of(trigger)
    ).text == "task train is skipped and has pushed no XCom job_name, so there is no job to wait for"


@pytest.mark.parametrize("value", ["x" * 1_000_000, "", {"a": 1}, 7])
async def test_what_is_no_name_is_named_briefly(value):
    """Any task may write the XCom of another."""
    found = await event_of(Watching(FakeBackend(), Desk(names={("train", -1): value}), condition=FAILED, job_task_id="train"))

    assert found.found == "impossible"
    assert "as XCom job_name; expected the name of a job" in found.text
    assert len(found.text) < 200


async def test_what_has_to_last_ends_without_news():
    """The end of a time is no news of the job."""
    fake = FakeBackend()
    await submit(fake)
    driving = asyncio.create_task(ending(Trigger(fake)))

    finding = await event_of(Watching(fake, condition={**TWO, "stable_for": 0.2}, poll_interval=600.0))

    assert finding.text.startswith("job digits: round 1 trains on 2 nodes")
    fake.verdict = SUCCESS
    await driving


async def test_all_sensors_of_a_job_share_one_look_at_it():
    """However many wait, the job is followed once and read once for each of its changes; the last to leave releases all."""
    fake = Counting()
    await submit(fake)
    triggers = [Watching(fake, condition=FAILED) for _ in range(100)]
    waiting = [asyncio.create_task(event_of(trigger)) for trigger in triggers]
    await eventually_async(lambda: fake.waits > 20)

    assert (sum(trigger.opened for trigger in triggers), fake.followed, fake.asked) == (1, 1, 0)
    # It is read before it is waited for, and the last of these looks may be half done.
    assert {fake.loads - fake.waits, fake.read - fake.waits} <= {0, 1}
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    assert (fake.closed, waiting[0].done()) == (0, False)
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert fake.closed == 1


async def test_progress_is_asked_for_only_while_somebody_wants_it():
    """What is written down may be half a minute old, and does for all else."""
    fake = Counting()
    await submit(fake)
    waiting = asyncio.create_task(event_of(Watching(fake, condition={"kind": "progress", "min_step": 9})))

    await eventually_async(lambda: fake.asked > 2)

    assert fake.read == 0
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_backend_that_fails_for_a_while_ends_nobody():
    """A sensor is not spent on an API server that restarts."""
    fake = FakeBackend(verdict=SUCCESS)
    await submit(fake)
    await ending(Trigger(fake))
    fake.broken = BackendError("the API server is away")
    waiting = asyncio.create_task(event_of(Watching(fake, condition={"kind": "state"} | {"phase": "Succeeded"})))
    await asyncio.sleep(0.1)
    assert not waiting.done()

    fake.broken = None

    assert (await waiting).found is Found.MET


async def test_what_can_be_no_job_is_said_at_once():
    """A name that no job can have is not waited for."""
    fake = FakeBackend()
    fake.broken = JobNotFoundError("'A b' is not the name of a job")

    finding = await event_of(Watching(fake, condition=FAILED, job_name="A b"))

    assert (finding.found, finding.text) == (Found.IMPOSSIBLE, "'A b' is not the name of a job")


async def test_a_trigger_that_is_cancelled_releases_its_backend():
    """A triggerer that stops leaves nothing open."""
    fake = Counting()
    waiting = asyncio.create_task(event_of(Watching(fake, condition=TWO)))
    await eventually_async(lambda: fake.loads)

    waiting.cancel()
    await asyncio.wait([waiting])

    assert fake.closed == 1
