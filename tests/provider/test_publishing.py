"""The page of a job while its task waits: how often it is published, and that nobody fails for it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rallypoint.provider.deferred import publication_of
from rallypoint.provider.publishing import Publication, publish_interval, publishing
from rallypoint.report.model import State
from rallypoint.report.page.values import Page
from rallypoint.wire import codec
from tests.provider.fake_backend import FakeBackend
from tests.provider.tasks import FakeTask
from tests.provider.triggers import Trigger, submitted
from tests.waiting import eventually_async


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line, *values):
        self.lines.append(line % values)


def publication(write, **changes) -> Publication:
    usual = Publication(write=write, interval=0.01, owner="try-1", number=3, place="local", first=0.0)
    return dataclasses.replace(usual, **changes)


async def test_a_page_is_published_when_it_has_changed():
    """Live, with the number of the task's try; the same page is written once."""
    fake = await submitted(FakeBackend())
    pages: list[object] = []
    async with publishing(fake, "digits", Log(), publication(pages.append)):
        await eventually_async(lambda: pages)
        await asyncio.sleep(0.1)
        assert len(pages) == 1
        record = fake.record("digits")
        fake.world.jobs["digits"].record = dataclasses.replace(record, suspend=True, last_now=record.last_now + 1).to_json()
        await eventually_async(lambda: len(pages) == 2)

    page = codec.from_json(Page, pages[0])
    assert (page.state, page.live, page.kept, page.job) == (State.WAITING, True, False, "digits")
    assert "try 3 of this task" in [fact.text for fact in page.details]


async def test_a_page_that_cannot_be_written_ends_nothing():
    """It is said once, and tried again."""
    fake, log, tries = await submitted(FakeBackend()), Log(), []

    def write(page):
        tries.append(page)
        raise RuntimeError("no XCom today")

    async with publishing(fake, "digits", log, publication(write)):
        await eventually_async(lambda: len(tries) >= 3)

    assert log.lines == ['Cannot update the tab "Elastic training" of job digits: no XCom today']


async def test_a_write_that_has_begun_ends_before_the_task_goes_on():
    """Or it would overwrite what the task keeps at its end."""
    fake, order = await submitted(FakeBackend()), []
    begun, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(page):
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        order.append("written")

    async with publishing(fake, "digits", Log(), publication(write)):
        await begun.wait()
        loop.call_later(0.05, may_end.set)
    order.append("the task goes on")

    assert order == ["written", "the task goes on"]


@pytest.mark.parametrize("to", [None, publication(print, interval=0.0)], ids=["no XComs", "an interval of 0"])
async def test_nothing_is_published_where_nobody_wants_it(to, capsys):
    """`do_xcom_push=False`, and the administrator's 0."""
    fake = await submitted(FakeBackend())
    async with publishing(fake, "digits", Log(), to):
        await asyncio.sleep(0.05)

    assert capsys.readouterr().out == ""


def test_the_interval_is_an_option(monkeypatch):
    """Of Airflow's configuration."""
    assert publish_interval() == 60
    monkeypatch.setenv("AIRFLOW__RALLYPOINT__UI_PUBLISH_INTERVAL", "7.5")
    assert publish_interval() == 7.5


async def test_a_trigger_publishes_where_its_task_is_known():
    """To the XComs of the task instance that waits for it."""
    fake = await submitted(FakeBackend())
    trigger = Trigger(fake, publish=True, try_number=2)
    assert publication_of(trigger) is None
    trigger.task_instance = FakeTask()  # type: ignore[assignment]
    found = publication_of(trigger)
    assert found is not None
    assert (found.number, found.owner, found.interval) == (2, "try-1", 60)
    silent = Trigger(fake, publish=False)
    silent.task_instance = FakeTask()  # type: ignore[assignment]
    assert publication_of(silent) is None
