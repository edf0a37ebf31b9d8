"""A ConfigMap whose record, plan or labels name another job than the one in whose place it is."""

from __future__ import annotations

import asyncio
import json

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.labels import JOB, UID
from rallypoint.backends.kubernetes.manifests.objects import PLAN_KEY, RECORD_KEY
from rallypoint.backends.supervise import supervise
from rallypoint.cli.main import main
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage

MERGE = "application/merge-patch+json"


@pytest.fixture
def stage(tmp_path, home):
    """A namespace with the jobs `victim` and `mine`, of which nothing runs."""
    with running(Options(nodes=())) as cluster:
        made = KubernetesStage(tmp_path, cluster)
        asyncio.run(_submit(made))
        yield made


async def _submit(stage):
    backend = stage.another()
    try:
        for name in ("victim", "mine"):
            await backend.submit(backend.plan(stage.job(name)), owner=f"{name}-ti")
    finally:
        await backend.close()


def configmap(stage, name):
    return stage.ask("GET", stage.path("configmaps", f"rallypoint-{name}"))


def patch(stage, name, change):
    stage.ask("PATCH", stage.path("configmaps", f"rallypoint-{name}"), change, content=MERGE)


def of_victim(stage):
    """The record of `victim`, with the owner of `mine` and the uid label of `victim`."""
    victim = configmap(stage, "victim")
    record = {**json.loads(victim["data"][RECORD_KEY]), "owner": "mine-ti"}
    labels = {UID: victim["metadata"]["labels"][UID]}
    patch(stage, "mine", {"metadata": {"labels": labels}, "data": {RECORD_KEY: json.dumps(record)}})


def plan_of_victim(stage):
    """The plan of `victim`."""
    patch(stage, "mine", {"data": {PLAN_KEY: configmap(stage, "victim")["data"][PLAN_KEY]}})


def uid_of_victim(stage):
    """The uid of `victim` in the record alone."""
    uid = configmap(stage, "victim")["metadata"]["labels"][UID]
    record = {**json.loads(configmap(stage, "mine")["data"][RECORD_KEY]), "uid": uid}
    patch(stage, "mine", {"data": {RECORD_KEY: json.dumps(record)}})


def empty_uid(stage):
    """The uid of `victim` in the record, and no uid in the label."""
    uid_of_victim(stage)
    patch(stage, "mine", {"metadata": {"labels": {UID: ""}}})


def label_of_victim(stage):
    """The name of `victim` in the label of the job."""
    patch(stage, "mine", {"metadata": {"labels": {JOB: "victim"}}})


CASES = [
    (of_victim, "the record belongs to job 'victim', but this is the place of job 'mine'"),
    (plan_of_victim, "the plan belongs to job 'victim', but this is the place of job 'mine'"),
    (uid_of_victim, "but the uid label of job 'mine' is"),
    (empty_uid, "but the uid label of job 'mine' is ''"),
    (label_of_victim, "names job 'victim', but this is the place of job 'mine'"),
]


@pytest.mark.parametrize(("plant", "told"), CASES, ids=[plant.__name__ for plant, _ in CASES])
def test_no_command_takes_a_job_for_another(stage, tmp_path, capsys, plant, told):
    """Status and log were those of the other job, and the deletion never ended; it leaves the other job as it is."""
    plant(stage)
    before = configmap(stage, "victim")
    where = ["--backend", "kubernetes", "--namespace", stage.namespace]
    where += ["--kubeconfig", str(stage.emulator.kubeconfig(tmp_path / "kubeconfig"))]

    for command in ("status", "logs", "delete"):
        assert main([command, "mine", *where]) != 0
        assert told in capsys.readouterr().err

    assert configmap(stage, "victim") == before


def test_a_supervisor_of_a_job_that_names_another_pauses(stage, caplog):
    """It sent 140 requests and wrote 28 log lines each second."""
    of_victim(stage)
    before = configmap(stage, "victim")
    caplog.set_level("INFO", "rallypoint")

    async def supervised():
        backend = stage.another()
        try:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(supervise(backend, "mine", holder="test"), 3.0)
            with pytest.raises(BackendError, match="the record belongs to job 'victim'"):
                await backend.tail("mine", lines=5)
        finally:
            await backend.close()

    asyncio.run(supervised())

    assert 1 <= caplog.text.count("the record belongs to job 'victim'") <= 8
    assert configmap(stage, "victim") == before
