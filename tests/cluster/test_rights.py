"""The Roles that are printed are what a whole job needs, verb by verb, and no more: on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from rallypoint.backends.kubernetes.names import COORDINATOR_ROLE, SUPERVISOR_ROLE
from rallypoint.backends.kubernetes.rbac import COORDINATOR, SUPERVISOR, Grant
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.supervision.record import Phase
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite
from tests.emulator.running import Running
from tests.waiting import PATIENCE, eventually_async

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: Machines are looked at where somebody grants that beside the Role; without it they are not.
EXTRA = {("", "nodes", "list"), ("", "nodes", "watch")}

Right = tuple[str, str, str]


def granted(grants: Iterable[Grant]) -> set[Right]:
    return {(grant.group, grant.resource, verb) for grant in grants for verb in grant.verbs}


class Witness:
    """What an emulator noted of the accounts of one namespace."""

    def __init__(self, emulator: Running, site: ClusterSite) -> None:
        self._emulator, self._namespace = emulator, site.namespace

    def uses(self, account: str) -> set[Right]:
        user = f"system:serviceaccount:{self._namespace}:{account}"
        return {(use["group"], use["resource"], use["verb"]) for use in self._emulator.uses(user=user)} - EXTRA


@pytest.mark.extended
async def test_rights_used_are_rights_granted(emulator: Running, place: ClusterSite) -> None:
    """A job waits for a volume, loses its supervisor and a node, pauses, ends: each verb of both Roles is used, no other."""
    witness = Witness(emulator, place)
    late: dict[str, Any] = {"name": "late", "configMap": {"name": "late"}}
    spec = place.job(nodes="1:2", volumes=[late], volume_mounts=[{"name": "late", "mountPath": "/late"}])
    async with submitted(place, spec, supervised=False) as job:
        async with job.supervised_by_a_process():
            await eventually_async(lambda: ("", "events", "list") in witness.uses(SUPERVISOR_ROLE), every=0.5)
            await place.ask("POST", place.path("configmaps"), {"metadata": {"name": "late"}, "data": {"it": "came"}})
            await job.trains(ranks=2)
            await eventually_async(lambda: witness.uses(COORDINATOR_ROLE) >= granted(COORDINATOR), timeout=90.0, every=0.5)
        reading = asyncio.create_task(_read_to_its_end(job))
        await place.lose_node(job.name, 1)
        job.supervise()
        await job.trains(ranks=2, round_=2)
        await request_suspension(job.eyes, job.name)
        await job.until(lambda record: record.phase is Phase.SUSPENDED)
        await request_resumption(job.eyes, job.name)
        await job.trains(ranks=2, attempt=2)
        await job.ends()
        assert await asyncio.wait_for(reading, 60 * PATIENCE) > 0

    for account, grants in ((COORDINATOR_ROLE, COORDINATOR), (SUPERVISOR_ROLE, SUPERVISOR)):
        used, may = witness.uses(account), granted(grants)
        assert {"lacking": sorted(used - may), "superfluous": sorted(may - used)} == {"lacking": [], "superfluous": []}, account


async def _read_to_its_end(job: Job) -> int:
    """Return how many lines the job wrote until it was over."""
    return len([line async for line in job.eyes.logs(job.name, follow=True)])
