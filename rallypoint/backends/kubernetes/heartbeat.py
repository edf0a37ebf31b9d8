"""The heartbeat of a supervising process: a Lease of its own, renewed every ten seconds, however many jobs it supervises.

Readers look for a change of it and for nothing else: no two clocks are compared. A process that is killed leaves its Lease;
whoever takes its jobs over removes it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rallypoint.backends.contract import BackendError, Pulse
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import PART, Part
from rallypoint.supervision.record import Holder

__all__ = ["BEAT", "SILENT", "Heart", "Leases", "lease_of", "read_pulse"]

log = logging.getLogger(__name__)

#: Beats that are missed in a row before it is worth a word.
_TROUBLE = 2

#: Seconds between two beats, and without one until the process counts as gone.
BEAT, SILENT = 10.0, 40.0


class Leases(Protocol):
    """What a heart asks of its cluster."""

    namespace: str

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object as it is now, or None."""
        ...

    async def create(self, kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""
        ...

    async def patch(self, kind: str, name: str, change: Any, how: str) -> dict[str, Any]:
        """Change an object."""
        ...

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object."""
        ...


class Heart:
    """The heart of one event loop; it beats as long as somebody uses it."""

    def __init__(self, cluster: Leases, *, beat: float = BEAT) -> None:
        self._cluster, self._beat = cluster, beat
        self.id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._lease = names.supervisor_lease(self.id)
        self._users = 0
        self._written = False
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    async def join(self, name: str) -> Holder:
        """Have it beat until `leave`; return how records name it once its first beat is written. `name` is for people."""
        async with self._changing:
            if not self._written:
                await self._begin()
            self._users += 1
        heartbeat = f"{self._cluster.namespace}/{self._lease}"
        return Holder(id=self.id, name=name, host=os.uname().nodename, pid=os.getpid(), heartbeat=heartbeat)

    async def leave(self) -> None:
        """Use it no more; the last one to leave stops it, and its Lease is removed."""
        async with self._changing:
            self._users -= 1
            if self._users:
                return
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            self._written = False
            try:
                await self._cluster.delete("leases", self._lease)
            except BackendError as error:
                log.info("the Lease %s is left behind: %s", self._lease, error)

    async def _begin(self) -> None:
        await self._create()
        self._written = True
        self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def _create(self) -> None:
        manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._lease,
                "namespace": self._cluster.namespace,
                "labels": {PART: Part.SUPERVISOR.value},
            },
            "spec": {"holderIdentity": self.id, "leaseDurationSeconds": int(SILENT), "renewTime": _now()},
        }
        try:
            await self._cluster.create("leases", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _run(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(self._beat)
            try:
                await self._renew()
                missed = 0
            except BackendError as error:
                missed += 1
                if missed == _TROUBLE:
                    log.warning("the heartbeat cannot be written (%s); it is tried again every %g s", error, self._beat)

    async def _renew(self) -> None:
        change = {"spec": {"renewTime": _now(), "holderIdentity": self.id}}
        try:
            await self._cluster.patch("leases", self._lease, change, MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            # Somebody took us for dead, or tidied up: the jobs tell who holds them, not the Lease.
            await self._create()


def lease_of(holder: str) -> str:
    """Return the name of the Lease of a supervising process by its id."""
    return names.supervisor_lease(holder)


async def read_pulse(cluster: Leases, holder: Holder) -> Pulse | None:
    """Return the heartbeat of a supervisor as it is now; see `Backend.pulse`."""
    found = await cluster.get("leases", lease_of(holder.id))
    if found is None:
        return None
    renewed = str((found.get("spec") or {}).get("renewTime") or "")
    return Pulse(beat=f"{renewed}@{found['metadata'].get('resourceVersion', '')}", alive=None, at=_seconds(renewed))


def _now(clock: Callable[[], datetime.datetime] | None = None) -> str:
    moment = clock() if clock is not None else datetime.datetime.now(datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(renewed: str) -> float:
    try:
        return datetime.datetime.fromisoformat(renewed.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
