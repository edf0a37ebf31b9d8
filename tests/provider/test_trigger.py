from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest

from rallypoint.backends.contract import BackendError, LogLine
from rallypoint.provider.claim import End
from rallypoint.provider.conduct import Post, conduct
from rallypoint.provider.task_log import EARLIER_LINES
from rallypoint.provider.trigger import ElasticTrainingTrigger
from rallypoint.wire.status import Outcome, Verdict
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.triggers import CLAIM, Trigger, ending, submitted
from tests.waiting import eventually_async


def test_a_trigger_survives_its_row_in_the_database():
    """What is stored makes an equal trigger, in any triggerer."""
    path, arguments = ElasticTrainingTrigger.of(CLAIM).serialize()

    assert path == "rallypoint.provider.trigger.ElasticTrainingTrigger"
    assert ElasticTrainingTrigger(**arguments).serialize() == (path, arguments)


async def test_the_trigger_drives_the_job_to_its_end():
    """The triggerer runs the same loop as a worker: it starts nodes, and its one event holds the result."""
    fake = await submitted(FakeBackend(verdict=SUCCESS))

    found = await ending(Trigger(fake))

    assert (found.end, found.summary["phase"], found.summary["step"]) == (End.SUCCEEDED, "Succeeded", 300)
    assert (fake.started, fake.closed) == ([(1, 0)], 1)


async def test_a_failure_comes_with_its_story():
    """The resumed task need not find the record."""
    verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="no restart is left")

    found = await ending(Trigger(await submitted(FakeBackend(verdict=verdict))))

    assert found.end is End.FAILED
    assert "no restart is left" in found.text


async def test_a_job_that_is_gone_is_told_as_deleted():
    """Somebody deleted it from outside; nothing creates it again."""
    fake = FakeBackend()

    assert (await ending(Trigger(fake))).end is End.DELETED
    assert fake.started == []


@pytest.mark.parametrize(
    ("broken", "says", "local"),
    [
        pytest.param(BackendError("backend: 'x' is not one"), "'x' is not one", True, id="the backend cannot be opened"),
        pytest.param(OSError("disk is full"), "disk is full", True, id="the backend cannot be read"),
        pytest.param(None, "RuntimeError: torn", False, id="the loop breaks"),
    ],
)
async def test_when_watching_breaks_the_event_says_so(broken, says, local):
    """The task is resumed with the reason, and not left to wait for ever."""
    fake = await submitted(FakeBackend())
    fake.broken = RuntimeError("torn")

    found = await ending(Trigger(broken or fake))

    assert (found.end, found.local_failure) == (End.ERROR, local)
    assert says in found.text


async def test_the_end_of_the_tasks_time_is_reported_and_the_job_cancelled():
    """Airflow does not enforce execution_timeout of a deferred task; the trigger does."""
    fake = await submitted(FakeBackend())
    trigger = Trigger(fake, deadline=1.0)

    found = await ending(trigger)

    assert (found.end, trigger.left) == (End.TIMEOUT, ["digits"])
    assert fake.record("digits").deletion


async def test_a_job_that_ended_in_time_is_not_deleted_by_a_trigger_that_comes_late():
    """No triggerer was there when it ended; the first one after the deadline finds its verdict and sees it through."""
    fake = await submitted(FakeBackend())
    first = asyncio.create_task(ending(Trigger(fake)))
    await eventually_async(lambda: fake.started)
    first.cancel()
    await asyncio.wait([first])
    fake.verdict = SUCCESS
    await fake.observe(fake.record("digits"))
    assert not fake.record("digits").finished
    late = Trigger(fake, deadline=1.0)

    found = await ending(late)

    assert (found.end, found.summary["phase"], late.left) == (End.SUCCEEDED, "Succeeded", [])


async def test_a_clock_that_is_set_back_only_makes_the_wait_longer():
    """The event loop's time-out is over, the wall clock's is not: what is left is waited for."""
    fake = await submitted(FakeBackend())
    asked: list[int] = []

    def clock():
        asked.append(len(asked))
        if len(asked) == 3:
            fake.verdict = SUCCESS
        return 99.99 if len(asked) < 3 else 0.0

    claim = dataclasses.replace(CLAIM, deadline=100.0)
    found = await conduct(Post(claim=claim, backend=fake, spawn=lambda _: None, log=logging.getLogger(__name__), clock=clock))

    assert (found.end, len(asked)) == (End.SUCCEEDED, 3)


async def test_a_triggerer_that_stops_leaves_the_job_running():
    """Cancelling releases the job and nothing else; another trigger goes on with the same processes."""
    fake = await submitted(FakeBackend())
    first = asyncio.create_task(ending(Trigger(fake)))
    await eventually_async(lambda: fake.started)
    first.cancel()
    await asyncio.wait([first])
    fake.verdict = SUCCESS

    found = await ending(Trigger(fake))

    assert found.end is End.SUCCEEDED
    assert fake.started == [(1, 0)]


async def test_a_second_trigger_only_looks_on_until_the_first_is_gone():
    """After a redistribution two triggerers may run one trigger for a while."""
    fake = await submitted(FakeBackend())
    first = asyncio.create_task(ending(Trigger(fake)))
    await eventually_async(lambda: fake.started)
    second = asyncio.create_task(ending(Trigger(fake)))
    fake.verdict = SUCCESS

    assert {found.end for found in await asyncio.gather(first, second)} == {End.SUCCEEDED}
    assert fake.started == [(1, 0)]


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
async def test_a_task_that_was_ended_takes_its_job_with_it(state):
    """Marked by a user: the job is deleted by a supervisor of its own, which outlives the triggerer."""
    fake = await submitted(FakeBackend())
    trigger = Trigger(fake, state=state)

    await trigger.on_kill()

    assert fake.record("digits").deletion
    assert trigger.left == ["digits"]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("deferred", id="a stalled triggerer woke up"),
        pytest.param("queued", id="another triggerer's event has it queued"),
        pytest.param("running", id="resumed already"),
        pytest.param("scheduled", id="cleared"),
        pytest.param(None, id="nobody knows"),
    ],
)
async def test_a_false_alarm_costs_no_job(state):
    """Airflow calls on_kill without a user, too."""
    fake = await submitted(FakeBackend())

    await Trigger(fake, state=state).on_kill()

    assert not fake.record("digits").deletion


async def test_a_kill_that_takes_long_is_seen_through():
    """Airflow cancels `on_kill` itself at each of its syncs, about once a second; the job is cancelled all the same."""
    fake = await submitted(FakeBackend())
    trigger = Trigger(fake, state="failed")
    trigger.answers.clear()
    killing = asyncio.create_task(trigger.on_kill())
    await asyncio.sleep(0)
    killing.cancel()
    await asyncio.wait([killing])

    trigger.answers.set()

    await eventually_async(lambda: trigger.left == ["digits"])
    assert fake.record("digits").deletion


async def test_a_late_kill_does_not_reach_the_next_trys_job():
    """After a clear the next try owns the job before the old trigger hears of it."""
    fake = await submitted(FakeBackend(), owner="try-2")

    await Trigger(fake, state="failed").on_kill()

    assert not fake.record("digits").deletion


async def test_a_kill_after_the_job_is_gone_is_nothing():
    """Deleting what is not there is fine."""
    trigger = Trigger(FakeBackend(), state="failed")

    await trigger.on_kill()

    assert trigger.left == []


async def test_keep_job_keeps_it():
    """The operator's wish travels with the claim."""
    fake = await submitted(FakeBackend())

    await Trigger(fake, state="failed", on_kill_action="keep_job").on_kill()

    assert not fake.record("digits").deletion


async def test_who_takes_over_tells_only_the_end_of_the_earlier_output(capsys):
    """A triggerer that was restarted does not write a day of output again."""
    fake = FakeBackend(verdict=SUCCESS)
    fake.lines = tuple(LogLine(rank=0, stream="out", text=f"line {i}", cursor=str(i)) for i in range(EARLIER_LINES + 7))
    await submitted(fake)

    await ending(Trigger(fake))

    told = capsys.readouterr().out
    assert "7 earlier lines are omitted; `rallypoint logs digits` shows them" in told
    assert [told.count(f"] line {number} ") for number in (6, 7, EARLIER_LINES + 6)] == [0, 1, 1]


async def test_many_lines_of_output_do_not_hold_up_the_job():
    """The loop goes on between lines."""
    fake = FakeBackend(verdict=SUCCESS)
    fake.lines = tuple(LogLine(rank=0, stream="out", text=str(i), cursor=str(i)) for i in range(500))
    await submitted(fake)

    assert (await ending(Trigger(fake))).end is End.SUCCEEDED
