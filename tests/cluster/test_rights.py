"""The Roles that are printed are what a whole job needs, verb by verb, and no more: on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.names import COORDINATOR_ROLE, SUPERVISOR_ROLE
from rallypoint.backends.kubernetes.rbac import COORDINATOR, SUPERVISOR, Grant
from tests.cluster.conftest import emulated
from tests.cluster.jobs import submitted
from tests.cluster.sites import ClusterSite
from tests.emulator.running import Running
from tests.waiting import eventually_async

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


async def test_rights_used_are_rights_granted(emulator: Running, tmp_path: Path) -> None:
    """A job waits for a volume, loses a node under its second supervisor: each verb of both Roles is used, and no other."""
    site = emulated(emulator, tmp_path)
    await site.begin()
    await site.ready()
    witness = Witness(emulator, site)
    late: dict[str, Any] = {"name": "late", "configMap": {"name": "late"}}
    spec = site.job(nodes="1:2", volumes=[late], volume_mounts=[{"name": "late", "mountPath": "/late"}])
    async with submitted(site, spec) as job:
        await eventually_async(lambda: ("", "events", "list") in witness.uses(SUPERVISOR_ROLE), every=0.5)
        await site.ask("POST", site.path("configmaps"), {"metadata": {"name": "late"}, "data": {"it": "came"}})
        await job.trains(ranks=2)
        await eventually_async(lambda: witness.uses(COORDINATOR_ROLE) >= granted(COORDINATOR), timeout=90.0, every=0.5)
        assert [line async for line in job.eyes.logs(job.name)] != []
        await job.abandon()
        job.supervise()
        await site.lose_node(job.name, 1)
        await job.trains(ranks=2, round_=2)
        await job.ends()

    assert witness.uses(COORDINATOR_ROLE) == granted(COORDINATOR)
    assert witness.uses(SUPERVISOR_ROLE) == granted(SUPERVISOR)
    await site.close()
