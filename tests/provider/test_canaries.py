"""Secrets of a connection are planted, a task lives its life on a cluster, and everything that it left is searched for them."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.serde import serialize

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.claim import Ending
from rallypoint.provider.connections.hook import RallypointHook
from rallypoint.provider.trigger import ElasticTrainingTrigger
from tests.emulator.options import Options
from tests.emulator.running import kubeconfig, running
from tests.kube.stage import KubernetesStage
from tests.provider.tasks import FakeTask, Store, context
from tests.waiting import PATIENCE, eventually_async

pytest.importorskip("kubernetes")

pytestmark = [
    pytest.mark.live,
    pytest.mark.may_block("kubeconfigs are read in a thread, which has a loop of its own for that"),
]

#: What stands in the kubeconfig beside the token that counts.
CANARY = "canary-0a5f6d2e"

#: Everything that an object of a job may be.
KINDS = ("configmaps", "secrets", "services", "pods", "events", "serviceaccounts")


@pytest.fixture
def stage(tmp_path, home):
    """A namespace that enforces rights, so that without its secrets nothing works."""
    with running(Options(rbac=True)) as cluster:
        yield KubernetesStage(tmp_path, cluster)


@pytest.fixture
def secrets(stage, monkeypatch):
    """The connections; what nobody may find afterwards is returned."""
    token = stage.emulator.admin_token
    config = kubeconfig(stage.emulator.url, CANARY)
    prod = {"conn_type": "kubernetes", "extra": {"kube_config": config}}
    extra = {
        "platform": "kubernetes",
        "kubernetes_conn_id": "prod",
        "namespace": stage.namespace,
        "image": "from-the-connection:1",
        "policies": {"fault_tolerance": {"retry_limit": 7}},
    }
    train = {"conn_type": "rallypoint", "password": token, "extra": extra}
    for name, conn in (("PROD", prod), ("TRAIN", train)):
        text = json.dumps(conn)
        assert Connection.from_json(text, conn_id=name).conn_type == conn["conn_type"]
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", text)
    return (CANARY, token)


def test_no_secret_is_left_anywhere(stage, secrets, capfd, caplog):
    """Trigger row, XCom, rendered fields, state store, event, objects of the cluster and their labels, record, log."""
    caplog.set_level("DEBUG")
    own = stage.job().to_document()
    job = {key: value for key, value in own.items() if key in ("entrypoint", "python", "recovery", "rendezvous", "health")}
    op = ElasticTrainingOperator(task_id="train", conn_id="train", job=job, deferrable=True, get_logs=True, poll_interval=0.2)
    ti, store = FakeTask(), Store()

    with pytest.raises(TaskDeferred) as caught:
        op.execute(context(ti, task_state_store=store))
    row = caught.value.trigger.serialize()
    left: dict[str, Any] = {}
    event = asyncio.run(_live(stage, row, ti.pushed["job_name"], left))
    with pytest.raises(Exception, match="was deleted by another client") as failed:
        op.execute_complete(context(ti, task_state_store=store), event=event)

    fields = {name: getattr(op, name) for name in op.template_fields}
    left |= {"row": serialize(row[1]), "xcom": ti.pushed, "store": dict(store), "fields": fields, "event": event}
    left |= {"operator": vars(op), "error": str(failed.value), "records": caplog.text, "output": "".join(capfd.readouterr())}
    assert left["contents of Secrets"]
    assert (row[1]["conn_id"], row[1]["namespace"]) == ("train", stage.namespace)
    assert "from-the-connection:1" in repr(left["objects"]["pods"])
    assert '"retry_limit": 7' in left["record"] or "retry_limit: 7" in left["record"]
    found = [(where, secret) for where, what in left.items() for secret in secrets if secret in repr(what)]
    assert found == []


def test_a_connection_that_is_tested_tells_no_secret(stage, secrets, capfd, caplog):
    """Nor does one that is wrong."""
    caplog.set_level("DEBUG")
    hook = RallypointHook("train")

    told = [hook.test_connection(), repr(hook.locate()), repr(vars(hook))]

    assert told[0][0] is True, told
    assert [secret for secret in secrets if secret in f"{told} {caplog.text} {capfd.readouterr()}"] == []


def test_a_platform_that_disagrees_is_named_on_both_sides(stage, secrets):
    """The error is the task's, and tells what to change."""
    ti = FakeTask()
    for op in (
        ElasticTrainingOperator(task_id="train", conn_id="train", backend="local", entrypoint="train.py"),
        ElasticTrainingOperator(task_id="there", conn_id="train", home="/data", entrypoint="train.py"),
    ):
        with pytest.raises(Exception, match="is not allowed with connection 'train', whose platform is 'kubernetes'"):
            op.execute(context(ti))


async def _live(stage: KubernetesStage, row: tuple[str, dict[str, Any]], name: str, left: dict[str, Any]) -> Any:
    """See the trigger supervise until the job's pods are there, look at all that there is, and delete the job."""
    trigger = ElasticTrainingTrigger(**row[1])
    running_ = asyncio.ensure_future(_event(trigger))

    async def trains() -> Any:
        return bool(await asyncio.to_thread(stage.pods, "rallypoint.dev/part=node")) or running_.done()

    await eventually_async(trains, timeout=60)
    everything = {kind: await asyncio.to_thread(stage.ask, "GET", stage.path(kind)) for kind in KINDS}
    left["objects"] = everything
    data = [item.get("data") or {} for item in everything["secrets"]["items"]]
    left["contents of Secrets"] = [base64.b64decode(value) for values in data for value in values.values()]
    left["record"] = repr(everything["configmaps"])
    await asyncio.to_thread(stage.delete_from_outside, name)
    return await asyncio.wait_for(running_, 60 * PATIENCE)


async def _event(trigger: ElasticTrainingTrigger) -> Any:
    (event,) = [event async for event in trigger.run()]
    assert Ending.from_event(event.payload).name
    return event.payload
