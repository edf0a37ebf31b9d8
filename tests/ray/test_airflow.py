"""Airflow tasks whose connection names a Ray cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from rallypoint.provider.connections.hook import RallypointHook
from tests.live.airflow_task import Operator
from tests.provider.tasks import FakeTask, context
from tests.ray.sites import RaySite, states

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
    assert any(name == "rallypoint-ledger" for name in await asyncio.to_thread(states, site.namespace))


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


async def test_the_test_button_says_what_there_is(site: RaySite, connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that answers, and one that does not; nothing is created by it."""
    fine, told = await asyncio.to_thread(RallypointHook(connection).test_connection)
    assert (fine, told.startswith(f"Connection works: jobs run on the Ray cluster at {site.cluster.url}")) == (True, True)
    assert "rallypoint-ledger" not in await asyncio.to_thread(states, site.namespace)

    extra = {"platform": "ray", "address": "http://127.0.0.1:9"}
    monkeypatch.setenv("AIRFLOW_CONN_RAY", json.dumps({"conn_type": "rallypoint", "extra": extra}))
    fine, told = await asyncio.to_thread(RallypointHook(connection).test_connection)
    assert not fine
    assert "cannot reach the Ray dashboard at http://127.0.0.1:9" in told
