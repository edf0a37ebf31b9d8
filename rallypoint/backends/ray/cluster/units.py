"""The instances of simple roles on a Ray cluster: hosts as on the local backend, each in an actor of a placement group.

What is to run of a host is written into the ledger's copy of its folder and sent to its actor; how each instance ended, and
what it wrote, comes back into that folder. So all that reads units of this machine reads these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.contract import ActionError, Backend
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.local.store import Store
from rallypoint.backends.local.units import LocalUnits
from rallypoint.backends.ray.cluster import groups
from rallypoint.backends.ray.cluster.nodes import Nodes, placement_of
from rallypoint.backends.ray.placement import Placement, group_name
from rallypoint.backends.ray.roles import child, host_devices, place_of
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.job import ElasticJob
from rallypoint.supervision.conductor import wants
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitKey
from rallypoint.wire import env
from rallypoint.wire.plan import Plan
from rallypoint.wire.python import run_module
from rallypoint.wire.role_plans import RolePlan, role_plan, role_plans
from rallypoint.wire.unit_files import START, UNITS, life_name, unit_name

if TYPE_CHECKING:
    from rallypoint.supervision.observation import NodeSeen

__all__ = ["ClusterUnits"]


class ClusterUnits(LocalUnits):
    """Those of one job. `url` is where its instances find each other."""

    def __init__(self, jobs: Backend, store: Store, folder: JobFolder, nodes: Nodes, *, url: str) -> None:
        super().__init__(jobs, folder, run_module("rallypoint.agent"), _unplaced)
        self._store, self._nodes, self.url = store, nodes, url
        #: A start and the release of everything never overlap: what is released stays so.
        self._changing = asyncio.Lock()

    # --- calls of supervisors -------------------------------------------------------------------------------------------

    async def admit(self, record: JobRecord, plan: Plan) -> None:
        """Reserve the base group; see `UnitBackend.admit`."""
        async with self._changing:
            await in_thread(self._admit, record)

    def _admit(self, record: JobRecord) -> None:
        current = self._current(record)
        if current is not None and not current.deletion and not current.finished and not current.suspend:
            self._nodes.reserve(record.uid, self._folder, placement_of(self._folder), new=True)

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Place a host for the instance, then write what is to run; see `UnitBackend.start`."""
        async with self._changing:
            await super().start(record, plan, key)

    def _start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        current = self._current(record)
        if current is None or current.conductor is None or not wants(current.conductor, key):
            return
        role = role_plan(plan, key.role)
        place, group = place_of(role), key.index // role.per_group
        hosts = [host for _, host in self._folder.hosts(f"{place}-{group}")]
        life = Path(UNITS, unit_name(key.role, key.index), life_name(key.attempt, key.reset, key.incarnation))
        known = next((host for host in hosts if (host.path / life / START).exists()), None)
        host = known or self._live_host(hosts, f"{place}-{group}")
        if host is not None:
            self._prepare(record, plan)
            self._nodes.create_host(current, self._folder, host, place=place, group=group)
        super()._start(record, plan, key)

    def _current(self, record: JobRecord) -> JobRecord | None:
        """Return the record as it is stored; None for another job of the name."""
        stored = self._store.load(record.name)
        return None if stored is None or stored.record.uid != record.uid else stored.record

    def _stop(self, key: UnitKey, roles: Mapping[str, RolePlan], *, force: bool) -> None:
        super()._stop(key, roles, force=force)
        if not force:
            return
        for _, host in self._folder.hosts(f"{place_of(roles[key.role])}-{key.index // roles[key.role].per_group}"):
            seen = self._look(host)
            if seen is not None and seen.state is NodeState.STARTING:  # its actor waits for a place, and reads no orders
                self._end(host, force=True)

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """End all hosts; see `UnitBackend.release`."""
        async with self._changing:
            return await super().release(record, plan)

    def child(self, record: JobRecord, plan: Plan, role: str) -> tuple[ElasticJob, Plan, Placement]:
        """Return the job of an elastic role. Blocks."""
        self._prepare(record, plan)
        return child(self._job(), plan, role_plan(plan, role), placement_of(self._folder), base=record.uid)

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return what is the same on all machines; the actor of a node knows the rest."""
        return {env.ROLES_URL: self.url}

    # --- what differs from this machine ---------------------------------------------------------------------------------

    def _look(self, host: NodeFolder) -> NodeSeen | None:
        return self._nodes.look(host)

    def _call(self, host: NodeFolder) -> None:
        self._nodes.call(host)

    def _end(self, host: NodeFolder, *, force: bool) -> None:
        self._nodes.remove(self._folder, host, force=force)

    def _master(self, plan: Plan, role: RolePlan) -> str:
        """Return the address of the Ray node that holds the first instance of a role."""
        placement = placement_of(self._folder)
        stored = self._store.load(self._folder.path.name)
        if stored is None:
            raise ActionError(f"job {self._folder.path.name} was deleted")
        base = groups.ensure_group(group_name(stored.record.uid), placement.group, patience=0.0)
        return groups.address_of(base.nodes.get(placement.hosts[place_of(role)].first, ""))

    def _numbered(self, plan: Plan, role: RolePlan, index: int) -> Sequence[int]:
        """Return the devices of an instance as its host counts them."""
        return host_devices(role_plans(plan), place_of(role), index // role.per_group).get((role.name, index), ())


def _unplaced(record: JobRecord, host: NodeFolder, command: Sequence[str], mark: str) -> None:  # noqa: ARG001  as LocalUnits calls it
    raise ActionError(f"host {host.path.parent.name}: Ray has not yet reserved resources for the role instances of this host")
