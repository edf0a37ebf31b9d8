"""Airflow tasks whose connection names a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from rallypoint.backends.ray.access import LEDGER
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.provider.claim import End, Ending
from rallypoint.provider.connections.hook import RallypointHook
from rallypoint.provider.submission import CLEARED_TRIES
from rallypoint.provider.trigger import ElasticTrainingTrigger
from rallypoint.sensors import JobStateSensor, ProgressSensor
from tests.cluster.jobs import Job, nothing_left
from tests.live.airflow_task import Operator
from tests.provider.tasks import FakeTask, context
from tests.ray import airflow_task
from tests.ray.sites import RaySite, states
from tests.ray.test_cli import submissions
from tests.ray.test_kills import farthest, pids
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]

TOKEN = "not-to-be-stored"
SCRIPT = "from rallypoint.training import report_progress, report_result\nreport_progress(3)\nreport_result({'loss': 0.5})\n"


@pytest.fixture
def connection(site: RaySite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A connection to the cluster, with a token that this cluster does not ask for."""
    extra = {"platform": "ray", "address": site.cluster.url, "namespace": site.namespace, "storage": str(site.storage)}
    text = {"conn_type": "rallypoint", "password": TOKEN, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_RAY", json.dumps(text))
    return "ray"


def operator(site: RaySite, connection: str, *, script: str = SCRIPT, **given: Any) -> Operator:
    command = [site.python, "-c", script]
    job = {"entrypoint": {"command": command}, "nproc_per_node": 2, "resources": {"cpu": "1"}}
    return Operator(task_id="train", conn_id=connection, job=job, **given)


def stored(site: RaySite) -> list[Path]:
    return [path for path in site.storage.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


async def test_a_task_trains_on_ray(site: RaySite, connection: str) -> None:
    """Its result is the job's; the token of the connection is in no file of the job."""
    task = FakeTask()

    result = await asyncio.to_thread(operator(site, connection).execute, context(task))

    assert result["result"] == {"loss": 0.5}
    assert stored(site) == []
    assert any(name == LEDGER for name in await asyncio.to_thread(states, site.namespace))


async def test_a_deferred_task_trains_on_ray(site: RaySite, connection: str) -> None:
    """The trigger finds the cluster by its arguments and the connection; no argument holds the token."""
    task = FakeTask()
    with pytest.raises(TaskDeferred) as caught:
        await asyncio.to_thread(operator(site, connection, deferrable=True).execute, context(task))
    trigger = caught.value.trigger
    path, arguments = trigger.serialize()
    assert (arguments["backend"], arguments["address"]) == ("ray", site.cluster.url)
    assert TOKEN not in json.dumps([path, arguments])

    event = await asyncio.wait_for(anext(aiter(trigger.run())), 120)
    resumed = operator(site, connection, deferrable=True)
    result = await asyncio.to_thread(getattr(resumed, caught.value.method_name), context(task), event.payload)

    assert result["result"] == {"loss": 0.5}


@contextlib.asynccontextmanager
async def trying(site: RaySite, owner: str, name: str, *, state: str = "running", tries: int = 1) -> AsyncIterator[Process]:
    """Have a try of a task at work in a process of its own, which is killed at the end unless it has ended."""
    words = ("-m", "tests.ray.airflow_task", owner, name, str(site.gate / "end"), state, str(tries))
    variables = {**os.environ, "AIRFLOW_HOME": str(site.gate / "airflow")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=variables
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def watched(site: RaySite, name: str) -> AsyncIterator[Job]:
    """Give the eyes of a test to the job of a task, which is deleted at the end."""
    job = Job(site, name, site.open())
    try:
        yield job
    finally:
        await job.close()


async def test_a_retry_goes_on_with_the_job_of_a_killed_try(site: RaySite, connection: str) -> None:
    """`kill -9` of the process of a task: its retry adopts the same job, whose workers trained on."""
    async with watched(site, "killed") as job:
        async with trying(site, "try-1", job.name):
            before = await job.trains(ranks=2, beyond=5)
            uid = await site.uid(job.name)
        async with trying(site, "try-2", job.name) as second:
            await job.until(lambda record: record.owner == "try-2")
            after = await job.trains(ranks=2, beyond=farthest(before))
            (site.gate / "end").touch()
            out, _ = await second.communicate()

    summary = json.loads(out.decode().splitlines()[-1])
    assert (second.returncode, pids(after)) == (0, pids(before))
    assert (summary["uid"], summary["attempts"], summary["faults"], summary["phase"]) == (uid, 1, 0, "Succeeded")


async def test_a_cleared_task_starts_its_job_again(site: RaySite, connection: str) -> None:
    """Airflow ends the process by SIGTERM and SIGKILL, and allows one more try: it begins the next attempt of the job."""
    async with watched(site, "cleared") as job:
        async with trying(site, "try-1", job.name, state="restarting") as first:
            before = await job.trains(ranks=2, beyond=5)
            uid = await site.uid(job.name)
            first.terminate()
            await job.until(lambda record: record.tries == CLEARED_TRIES)
        async with trying(site, "try-2", job.name, tries=2) as second:
            after = await job.trains(ranks=2, attempt=2)
            (site.gate / "end").touch()
            out, _ = await second.communicate()

    summary = json.loads(out.decode().splitlines()[-1])
    assert (second.returncode, summary["uid"], summary["phase"]) == (0, uid, "Succeeded")
    assert set(pids(after).values()).isdisjoint(pids(before).values())


async def test_a_task_that_was_ended_takes_its_job_with_it(site: RaySite, connection: str) -> None:
    """Marked failed while it runs: the job is deleted with its actors, its placement group and its processes."""
    async with watched(site, "ended") as job, trying(site, "try-1", job.name, state="failed") as first:
        await job.trains(ranks=2)
        await site.uid(job.name)
        first.terminate()
        out, _ = await first.communicate()
        assert first.returncode != 0, out.decode()
        await nothing_left(site, job.name)


class Deferred(ElasticTrainingTrigger):
    """The trigger of a task whose Airflow is played by this file."""

    airflow_says = "deferred"

    async def ask_state(self) -> str | None:
        return self.airflow_says


async def deferred(site: RaySite, job: Job, **ti: Any) -> Deferred:
    """Execute the task until it defers itself; return its trigger."""
    task = airflow_task.operator(job.name, str(site.gate / "end"), deferrable=True)
    with pytest.raises(TaskDeferred) as caught:
        await asyncio.to_thread(task.execute, context(FakeTask(**ti)))
    return Deferred(**caught.value.trigger.serialize()[1])


async def first_event(trigger: Deferred) -> Any:
    return await anext(aiter(trigger.run()))


async def test_a_deferred_task_that_was_ended_takes_its_job_with_it(site: RaySite, connection: str) -> None:
    """A triggerer that only lost the task leaves the job alone; one whose task was marked failed deletes it."""
    async with watched(site, "ended") as job:
        for state in ("running", "failed"):
            trigger = await deferred(site, job)
            running = asyncio.create_task(first_event(trigger))
            before = await job.trains(ranks=2)
            await site.uid(job.name)
            running.cancel()
            await asyncio.wait([running])
            trigger.airflow_says = state
            await trigger.on_kill()
            if state == "running":
                assert pids(await job.trains(ranks=2, beyond=farthest(before))) == pids(before)
        await nothing_left(site, job.name)


async def test_a_cleared_deferred_task_starts_its_job_again(site: RaySite, connection: str) -> None:
    """The next try has one more try than the one before, so it begins the next attempt of the same job."""
    async with watched(site, "cleared") as job:
        running = asyncio.create_task(first_event(await deferred(site, job, id="try-1", max_tries=1)))
        before = await job.trains(ranks=2)
        uid = await site.uid(job.name)
        running.cancel()
        await asyncio.wait([running])
        running = asyncio.create_task(first_event(await deferred(site, job, id="try-2", max_tries=2)))
        after = await job.trains(ranks=2, attempt=2)
        (site.gate / "end").touch()
        event = await asyncio.wait_for(running, 60 * PATIENCE)

        assert await site.uid(job.name) == uid

    assert Ending.from_event(event.payload).end is End.SUCCEEDED
    assert set(pids(after).values()).isdisjoint(pids(before).values())


async def test_sensors_and_the_tab_see_a_job_on_ray(site: RaySite, connection: str, tmp_path: Path) -> None:
    """They wait for it without starting anything, follow it in a worker and in a triggerer, and show it in Airflow."""
    place: dict[str, Any] = {"conn_id": connection, "job_name": "seen", "poke_interval": 0.5}
    early = JobStateSensor(task_id="early", deferrable=False, **place)
    assert not (await asyncio.to_thread(early.poke, context(FakeTask()))).is_done
    assert await submissions(site) == []

    async with watched(site, "seen") as job, trying(site, "try-1", job.name) as task:
        await job.trains(ranks=2)
        progress = ProgressSensor(task_id="progress", min_step=5, deferrable=False, **place)
        found = await asyncio.to_thread(progress.execute, context(FakeTask()))
        ended = JobStateSensor(task_id="ended", phase="Ended", **place)
        with pytest.raises(TaskDeferred) as caught:
            await asyncio.to_thread(ended.execute, context(FakeTask()))
        waiting = asyncio.create_task(anext(aiter(caught.value.trigger.run())))
        looker = Looker(access=LiveAccess(connections=frozenset({connection}), home=tmp_path))
        handle = {"name": job.name, "backend": "ray", "conn_id": connection}
        key = TaskKey(dag_id="nightly", run_id="manual__1", task_id="train")
        try:
            page = await looker.look(TaskSeen(key=key, tries={"try-1": 1}, handle=handle))
        finally:
            await looker.close()
        (site.gate / "end").touch()
        event = await asyncio.wait_for(waiting, 60 * PATIENCE)
        state = await asyncio.to_thread(ended.execute_complete, context(FakeTask()), event.payload)
        await task.communicate()

    assert found["step"] >= 5
    assert (page.job, page.live, len(page.nodes)) == ("seen", True, 1)
    assert state["phase"] == "Succeeded"


async def test_the_test_button_says_what_there_is(site: RaySite, connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that answers, and one that does not; nothing is created by it."""
    fine, told = await asyncio.to_thread(RallypointHook(connection).test_connection)
    assert (fine, told.startswith(f"Connection works: jobs run on the Ray cluster at {site.cluster.url}")) == (True, True)
    assert LEDGER not in await asyncio.to_thread(states, site.namespace)

    extra = {"platform": "ray", "address": "http://127.0.0.1:9"}
    monkeypatch.setenv("AIRFLOW_CONN_RAY", json.dumps({"conn_type": "rallypoint", "extra": extra}))
    fine, told = await asyncio.to_thread(RallypointHook(connection).test_connection)
    assert not fine
    assert "cannot reach the Ray dashboard at http://127.0.0.1:9" in told
