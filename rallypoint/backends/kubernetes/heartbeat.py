"""The heartbeat of a supervising process: a Lease of its own, renewed every ten seconds, however many jobs it supervises.

It is renewed with the API server's time. A reader that stays compares two readings of it; one that reads it once compares it
with the server's time (`lease.py`). A process that is killed leaves its Lease; the supervisor that takes over its jobs removes
it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rallypoint.backends.contract import BackendError, Pulse
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import PART, Part
from rallypoint.backends.kubernetes.lease import PROCESS, SILENT, Health, ProcessMark, assess, write_time
from rallypoint.backends.local import proc
from rallypoint.supervision.record import Holder
from rallypoint.wire import env

__all__ = ["BEAT", "Heart", "Leases", "health_of", "lease_of", "read_pulse"]

log = logging.getLogger(__name__)

#: Beats that are missed in a row before it is worth a word.
_TROUBLE = 2

#: Seconds between two beats.
BEAT = 10.0

#: Beats after which the API server is asked for its time again: clocks drift apart slowly.
_ADJUST = 30


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

    async def time(self) -> float:
        """Return the API server's clock, in seconds since the epoch."""
        ...


class Heart:
    """The heart of one event loop; it beats as long as somebody uses it."""

    def __init__(self, cluster: Leases, *, beat: float = BEAT) -> None:
        self._cluster, self._beat = cluster, beat
        self.id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._lease = names.supervisor_lease(self.id)
        self._users = 0
        self._written = False
        #: What the API server's clock is ahead of this process's monotonic one, in seconds.
        self._ahead = 0.0
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
                log.info("cannot delete Lease %s: %s", self._lease, error)

    async def _begin(self) -> None:
        await self._adjust()
        await self._create()
        self._written = True
        self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def _adjust(self) -> None:
        self._ahead = await self._cluster.time() - time.monotonic()

    def _now(self) -> str:
        return write_time(time.monotonic() + self._ahead)

    async def _create(self) -> None:
        manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._lease,
                "namespace": self._cluster.namespace,
                "labels": {PART: Part.SUPERVISOR.value},
                "annotations": {PROCESS: str(await asyncio.to_thread(_this_process))},
                **_owned_by_its_pod(),
            },
            "spec": {"holderIdentity": self.id, "leaseDurationSeconds": int(SILENT), "renewTime": self._now()},
        }
        try:
            await self._cluster.create("leases", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _run(self) -> None:
        missed = 0
        for beat in itertools.count(1):
            await asyncio.sleep(self._beat)
            try:
                if beat % _ADJUST == 0:
                    await self._adjust()
                await self._renew()
                missed = 0
            except BackendError as error:
                missed += 1
                if missed == _TROUBLE:
                    log.warning("this supervisor cannot write its heartbeat (%s); retrying every %g s", error, self._beat)

    async def _renew(self) -> None:
        change = {"spec": {"renewTime": self._now(), "holderIdentity": self.id}}
        try:
            await self._cluster.patch("leases", self._lease, change, MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            # Somebody took us for dead, or tidied up: the jobs tell who holds them, not the Lease.
            await self._create()


def _owned_by_its_pod() -> dict[str, Any]:
    """Return the owner of a Lease that a supervisor's pod renews; nothing outside of such a pod."""
    name, uid = os.environ.get(env.POD_NAME, ""), os.environ.get(env.POD_UID, "")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {"ownerReferences": [owner]} if name and uid else {}


def lease_of(holder: str) -> str:
    """Return the name of the Lease of a supervising process by its id."""
    return names.supervisor_lease(holder)


async def read_pulse(cluster: Leases, holder: Holder) -> Pulse | None:
    """Return the heartbeat of a supervisor as it is now; see `Backend.pulse`."""
    found = await cluster.get("leases", lease_of(holder.id))
    if found is None:
        return None
    health = await health_of(cluster, found)
    beat = f"{(found.get('spec') or {}).get('renewTime') or ''}@{found['metadata'].get('resourceVersion', '')}"
    note = "" if health.age is None or health.age < 2 * BEAT else f"its last heartbeat was {health.age:.0f} s ago"
    return Pulse(beat=beat, alive=False if health.gone else None, at=health.renewed_at, note=note)


async def health_of(cluster: Leases, lease: Mapping[str, Any], *, silent: float = SILENT) -> Health:
    """Return what a Lease that was just read says of its supervisor. Raises `BackendError`."""
    health = assess(lease, server_time=await cluster.time(), silent=silent)
    if health.gone or health.process is None:
        return health
    return dataclasses.replace(health, gone=await asyncio.to_thread(_has_ended, health.process))


def _has_ended(process: ProcessMark) -> bool:
    """Return whether a process that can be seen from here has ended. Blocks."""
    return process.is_visible_from(_this_process()) and proc.start_ticks(process.pid) != process.start_ticks


def _this_process() -> ProcessMark:
    pid = os.getpid()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return ProcessMark(boot_id=proc.boot_id(), namespace=namespace, pid=pid, start_ticks=proc.start_ticks(pid) or 0)
