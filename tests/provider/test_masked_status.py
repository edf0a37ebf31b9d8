"""The status of a job with one role shows no secret of the job, wherever it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from rallypoint.backends.contract import Stored
from rallypoint.backends.supervise import supervise, watch
from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.provider.sensing.streams import see
from rallypoint.provider.task_log import Narrator
from rallypoint.report.page.published import published_page
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.env import MASKED
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.sections import Sections
from rallypoint.wire.status import Event, JobStatus
from tests.provider.fake_backend import FakeBackend
from tests.provider.triggers import submitted

SECRET = "hunter2-secret"


class Quoting(FakeBackend):
    """The code of the script has a secret in its file name, which the stacks of a hang quote."""

    async def load(self, name: str) -> Stored | None:
        stored = await super().load(name)
        env = {"PW": SECRET, MASKED: json.dumps([["PW", 0, len(SECRET)]])}
        return stored and dataclasses.replace(stored, plan=dataclasses.replace(stored.plan, env=env))

    async def status(self, name: str) -> JobStatus | None:
        return _quoting(await super().status(name))

    async def observe(self, record: JobRecord) -> Observation:
        seen = await super().observe(record)
        return dataclasses.replace(seen, status=_quoting(seen.status))


def _quoting(status: JobStatus | None) -> JobStatus | None:
    if status is None:
        return None
    reason = f"rank 0 is sleeping in {SECRET}.py:4"
    hang = Hang(round=1, state=HangState.DOUBT, quiet_since=1.0, since=1.0, reason=reason)
    sections = Sections(StatusSection(hang=hang), unknown={"later": [reason]})
    return dataclasses.replace(status, events=(Event(at=1.0, kind="hang", detail=reason),), sections=sections)


@pytest.fixture
async def training() -> Quoting:
    """A job whose status quotes its secret; its first attempt runs."""
    fake = Quoting()
    await submitted(fake)
    await _told(fake, [])
    return fake


async def _told(fake: Quoting, lines: list[str]) -> None:
    """Supervise until the events of the status were told."""
    tell, done = Narrator(lines.append), asyncio.Event()

    def on_turn(snapshot) -> None:
        tell(snapshot)
        if snapshot.status is not None:
            done.set()

    driving = asyncio.create_task(supervise(fake, "digits", holder="test", on_turn=on_turn))
    told = asyncio.create_task(done.wait())
    await asyncio.wait({driving, told}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    driving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await driving


async def test_the_log_of_a_task_that_supervises(training):
    """What the coordinator says is told as it is."""
    lines: list[str] = []
    await _told(training, lines)

    assert "hang: rank 0 is sleeping in ***.py:4" in lines


async def test_the_log_of_a_task_that_looks_on(training):
    """Another process supervises the job."""
    lines: list[str] = []
    async for snapshot in watch(training, "digits"):
        Narrator(lines.append)(snapshot)
        break

    assert "hang: rank 0 is sleeping in ***.py:4" in lines


async def test_the_tab(training):
    """The page that the task publishes, and the one that the API server makes of the job."""
    published = await published_page(training, "digits", tries={"try-1": 1}, place="local", live=True)
    key, handle = TaskKey(dag_id="d", run_id="r", task_id="t"), {"name": "digits", "backend": "local", "owner": "try-1"}
    looker = Looker(lambda place: training, access=LiveAccess(home=Path("/home/airflow/.rallypoint")))
    page = await looker.look(TaskSeen(key=key, tries={"try-1": 1}, handle=handle))

    for text in (json.dumps(published), codec.dumps(page)):
        assert SECRET not in text
        assert "sleeping in ***.py:4" in text


async def test_what_a_sensor_sees(training):
    """It gives the evidence of a hang to the next task."""
    sight = await see(training, "digits", live=True)

    assert sight.status is not None
    assert SECRET not in codec.dumps(sight.status)
    hang = StatusSection.of(sight.status).hang
    assert hang is not None
    assert hang.reason == "rank 0 is sleeping in ***.py:4"
