"""Supervisors in pods, on an emulated cluster: what is refused, replaced and told."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.labels import PART
from rallypoint.backends.kubernetes.leaving import SupervisorPods
from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage
from tests.waiting import PATIENCE, eventually_async

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all tests; each has a namespace of its own."""
    with running(Options()) as made:
        yield made


@pytest.fixture
async def stage(tmp_path, cluster):
    """A namespace with the supervisors' service account."""
    made = KubernetesStage(tmp_path, cluster)
    yield made
    await made.close()


def with_account(stage):
    path = f"/api/v1/namespaces/{stage.namespace}/serviceaccounts"
    stage.ask("POST", path, {"metadata": {"name": SUPERVISOR_ROLE}}, fine=(409,))
    return stage


def pods_of(stage) -> SupervisorPods:
    return SupervisorPods(Access(namespace=stage.namespace, server=stage.emulator.url))


def job(stage, *command: str):
    """A job whose supervisor's pod runs that instead."""
    return stage.backend.plan(stage.job(python=[*command]))


def supervisors(stage):
    return stage.pods(f"{PART}=supervisor")


async def test_a_namespace_without_the_account_is_told_before_anything_is_there(stage):
    """With the command that makes it, and the ways to do without."""
    says = f"service account {SUPERVISOR_ROLE} not found in namespace {stage.namespace}; create it"
    with pytest.raises(SubmitError, match=says) as raised:
        await pods_of(stage).check(job(stage, "true"))

    assert f"rallypoint manifests rbac --namespace {stage.namespace}" in str(raised.value)
    assert supervisors(stage) == []


async def test_one_that_has_ended_is_replaced_and_one_that_runs_goes_on(stage):
    """A job that starts again gets a supervisor again, and never two."""
    pods, drawn = pods_of(with_account(stage)), job(stage, "sh", "-c", f"test -e {stage.ends}/stop || sleep 600")
    await pods.check(drawn)
    await stage.backend.submit(drawn, owner="ann")

    name = await pods.leave("digits")
    (first,) = supervisors(stage)
    assert (await pods.leave("digits"), [pod["metadata"]["uid"] for pod in supervisors(stage)]) == (
        name,
        [first["metadata"]["uid"]],
    )

    stage.emulator.request("DELETE", f"{stage.path('pods', name)}?gracePeriodSeconds=0", token=stage.emulator.admin_token)
    await pods.leave("digits")
    await eventually_async(
        lambda: len(supervisors(stage)) == 1 and supervisors(stage)[0]["metadata"]["uid"] != first["metadata"]["uid"]
    )


async def test_one_that_cannot_do_it_is_told_with_its_last_words(stage):
    """An image without what a supervisor needs, say."""
    pods, drawn = pods_of(with_account(stage)), job(stage, "sh", "-c", "echo there is no rallypoint here; exit 1")
    await stage.backend.submit(drawn, owner="ann")

    told = await asyncio.wait_for(pods.lost(await pods.leave("digits")), PATIENCE * 60)

    assert told.startswith("does not start (CrashLoopBackOff")
    assert "there is no rallypoint here" in told
