"""Which jobs count as one while a process supervises them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.backends.contract import HeldError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.client import KubeApi
from rallypoint.backends.kubernetes.watching.views import HOLDER
from rallypoint.job import load_job
from tests.emulator.options import Options
from tests.emulator.running import Running, running

JOB = {"name": "digits", "image": "train:1", "entrypoint": "train.py"}


async def reached(cluster: Running, file: Path, *, submitted: bool = True, context: str = "emulator") -> KubernetesBackend:
    """Open a backend by a kubeconfig, whose context has the same name for each cluster."""
    access = Access(namespace="default", kubeconfig=str(cluster.kubeconfig(file)), context=context)
    backend = KubernetesBackend(access, beat=0.2, silent=2.0)
    if submitted:
        await backend.submit(backend.plan(load_job(JOB)), owner="try-1")
    return backend


async def holder_in(cluster: Running) -> str:
    """Return the supervisor that the ConfigMap of the job names."""
    api = KubeApi(Access(namespace="default", server=cluster.url))
    try:
        found = await api.request("GET", f"/api/v1/namespaces/default/configmaps/{names.job_configmap('digits')}")
    finally:
        await api.close()
    return str(json.loads(found)["metadata"].get("annotations", {}).get(HOLDER, ""))


@pytest.mark.may_block("the test writes kubeconfigs")
async def test_jobs_of_one_name_in_two_clusters_are_both_supervised(tmp_path: Path) -> None:
    """Fails if a held job is known by the name of its cluster's context."""
    with running(Options()) as one, running(Options()) as two:
        first, second = await reached(one, tmp_path / "one"), await reached(two, tmp_path / "two")
        try:
            async with first.hold("digits", holder="first"), second.hold("digits", holder="second"):
                holders = [await holder_in(cluster) for cluster in (one, two)]
        finally:
            await first.close()
            await second.close()

    assert all(holders)


@pytest.mark.may_block("the test writes kubeconfigs")
async def test_a_job_that_is_reached_in_two_ways_is_supervised_once(tmp_path: Path) -> None:
    """Fails if a held job is known by the name of its kubeconfig: both holds have the name of this process."""
    with running(Options()) as cluster:
        first = await reached(cluster, tmp_path / "one")
        second = await reached(cluster, tmp_path / "two", submitted=False, context="")
        try:
            async with first.hold("digits", holder="first"):
                with pytest.raises(HeldError, match="first"):
                    async with second.hold("digits", holder="second"):
                        pytest.fail("two supervise one job")
        finally:
            await first.close()
            await second.close()
