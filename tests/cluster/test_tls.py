"""Pods that speak mutual TLS with one another: whole jobs, whose supervisor comes through the API server."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from rallypoint.backends.certificates import LIFETIME
from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.names import JobRef, attempt_secret
from rallypoint.backends.kubernetes.watching.cluster import joined
from rallypoint.supervision.record import Phase
from rallypoint.wire.tls import AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY, PEER_FILES
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


def later() -> float:
    """Return a time at which a certificate of today has been in use for long enough."""
    return time.time() + LIFETIME / 2


async def secret_of(place: ClusterSite, job: Job, attempt: int = 1) -> dict[str, Any]:
    """Return the Secret of an attempt."""
    record = await job.record()
    ref = JobRef(name=job.name, uid=record.uid, namespace=place.namespace)
    found: dict[str, Any] = await place.ask("GET", place.path("secrets", attempt_secret(ref, attempt)))
    return found


async def test_a_job_with_tls_trains_and_is_reset(place: ClusterSite) -> None:
    """Agents, coordinator and supervisor reach each other; the authority's own key reaches no pod."""
    async with submitted(place, place.job(nodes=2, tls="auto")) as job:
        await job.trains(ranks=2)
        secret = await secret_of(place, job)
        pods = (await place.ask("GET", place.path("pods")))["items"]
        await place.lose_node(job.name, 1)
        await job.trains(ranks=2, round_=2)
        record = await job.ends()

    assert record.phase is Phase.SUCCEEDED
    assert {*PEER_FILES, AUTHORITY_KEY, "secret", "plan.json"} == set(secret["data"])
    volumes = [volume["secret"] for pod in pods for volume in pod["spec"]["volumes"] if "secret" in volume]
    mounted = {item["key"] for volume in volumes for item in volume["items"]}
    assert mounted == {*PEER_FILES, "secret", "plan.json"}
    assert all("--tls" in pod["spec"]["containers"][0]["command"] for pod in pods)


@pytest.mark.extended
async def test_a_certificate_is_renewed_in_its_secret(place: ClusterSite) -> None:
    """After ten days, by the same authority; not before."""
    async with submitted(place, place.job(nodes=1, tls="auto")) as job:
        await job.trains(ranks=1)
        before = await secret_of(place, job)
        record = await job.record()
        ref = JobRef(name=job.name, uid=record.uid, namespace=place.namespace)
        async with joined(Access(namespace=place.namespace, kubeconfig=place.where.kubeconfig)) as cluster:
            with pytest.raises(BackendError, match="rallypoint manifests rbac --tls"):
                await AttemptSecrets(cluster, clock=later).renew(ref, 1)
        async with joined(place.administrator) as cluster:
            early = await AttemptSecrets(cluster).renew(ref, 1)
            late = await AttemptSecrets(cluster, clock=later).renew(ref, 1)
            gone = await AttemptSecrets(cluster).renew(ref, 7)
        after = await secret_of(place, job)

    assert (early, late, gone) == (False, True, False)
    changed = {key for key in before["data"] if before["data"][key] != after["data"][key]}
    assert changed == {CERTIFICATE, KEY}
    assert base64.b64decode(after["data"][AUTHORITY]).startswith(b"-----BEGIN CERTIFICATE")
