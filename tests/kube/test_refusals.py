"""What a cluster refuses is told at submission, in one sentence that names it; and nothing was created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.stage import KubernetesStage

pytestmark = pytest.mark.live

KINDS = [Kind.PODS, Kind.PYTORCHJOB, Kind.APPWRAPPER]

#: Where objects of a job may be.
PLURALS = ("/api/v1/{}/configmaps", "/api/v1/{}/pods", "/api/v1/{}/secrets", "/api/v1/{}/services")
WRAPPERS = ("/apis/workload.codeflare.dev/v1beta2/{}/appwrappers", "/apis/kubeflow.org/v1/{}/pytorchjobs")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster with controllers of wrappers."""
    with running(Options(controllers=("appwrapper", "pytorchjob"))) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def bare() -> Iterator[Running]:
    """A cluster without."""
    with running(Options()) as emulator:
        yield emulator


async def refused(stage: KubernetesStage, kind: Kind, *, namespace: str = "") -> str:
    """Submit a job; return why it was refused, after a look whether anything is there."""
    access = Access(namespace=namespace or stage.namespace, server=stage.emulator.url)
    backend = KubernetesBackend(access)
    try:
        with pytest.raises(SubmitError) as told:
            await backend.submit(backend.plan_as(stage.job(resources={"cpu": 1}), kind), owner="ann")
    finally:
        stage.emulator.heal()
        await backend.close()
    assert left(stage) == []
    return str(told.value)


def left(stage: KubernetesStage) -> list[str]:
    """What of a job is in any namespace."""
    names = []
    for plural in (*PLURALS, *WRAPPERS):
        found = stage.ask("GET", plural.format(f"namespaces/{stage.namespace}"), fine=(404,))
        names += [item["metadata"]["name"] for item in (found or {"items": ()})["items"]]
    return [name for name in names if "digits" in name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["configmaps", "pods", "wrapper"])
async def test_a_webhook_refuses(cluster: Running, tmp_path: Any, home: Any, kind: Kind, part: str) -> None:
    """Its own words are passed on, with what it refused."""
    plural = {Kind.PODS: "services", Kind.PYTORCHJOB: "pytorchjobs", Kind.APPWRAPPER: "appwrappers"}[kind]
    stage = KubernetesStage(tmp_path, cluster)
    cluster.fault(kind="deny", resources=[plural if part == "wrapper" else part], message="not on Sundays")

    said = await refused(stage, kind)

    assert "rejected by an admission check of the cluster" in said
    assert "not on Sundays" in said


@pytest.mark.parametrize("kind", KINDS)
async def test_it_may_not_be_created(cluster: Running, tmp_path: Any, home: Any, kind: Kind) -> None:
    """The kind, the namespace, and which command prints the Role."""
    plural = {Kind.PODS: "pods", Kind.PYTORCHJOB: "pytorchjobs", Kind.APPWRAPPER: "appwrappers"}[kind]
    stage = KubernetesStage(tmp_path, cluster)
    cluster.fault(kind="forbid", resources=[plural], verbs=["create"])

    said = await refused(stage, kind)

    assert f"not allowed in namespace {stage.namespace}" in said
    assert f'cannot create resource "{plural}"' in said
    assert "rallypoint manifests rbac" in said


@pytest.mark.parametrize("kind", KINDS)
async def test_a_quota_can_never_hold_it(cluster: Running, tmp_path: Any, home: Any, kind: Kind) -> None:
    """It would be waited for for ever; one that is only full now is waited for."""
    stage = KubernetesStage(tmp_path, cluster)
    hard = {"metadata": {"name": "tight"}, "spec": {"hard": {"requests.cpu": "500m"}}}
    stage.ask("POST", stage.path("resourcequotas"), hard)

    said = await refused(stage, kind)

    assert f"exceeds the quota of namespace {stage.namespace}" in said
    assert "exceeded quota: tight" in said


@pytest.mark.parametrize("kind", KINDS)
async def test_there_is_no_such_namespace(cluster: Running, tmp_path: Any, home: Any, kind: Kind) -> None:
    """The namespace is named, and not the kind."""
    said = await refused(KubernetesStage(tmp_path, cluster), kind, namespace="nowhere")

    assert "namespace: 'nowhere' not found on this cluster" in said


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(
            Kind.APPWRAPPER,
            "kind: this cluster does not have the kind AppWrapper of API workload.codeflare.dev/v1beta2; "
            "the AppWrapper controller is not installed",
            id="AppWrapper",
        ),
        pytest.param(
            Kind.PYTORCHJOB,
            "kind: this cluster does not have the kind PyTorchJob of API kubeflow.org/v1; "
            "the training operator is not installed",
            id="PyTorchJob",
        ),
    ],
)
async def test_the_cluster_does_not_know_the_kind(bare: Running, tmp_path: Any, home: Any, kind: Kind, expected: str) -> None:
    """What has to be installed is named."""
    assert await refused(KubernetesStage(tmp_path, bare), kind) == expected
