"""What the coordinator of a job says: what it wrote down last, or what it answers when it is asked itself."""

from __future__ import annotations

import asyncio
import logging

from rallypoint.backends.contract import BackendError, Stored
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.hold import Holds
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.store import Store, UnreadableStatusError
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.status import JobStatus

__all__ = ["Statuses"]

log = logging.getLogger(__name__)

#: Seconds for which what a coordinator said itself is not asked again.
_LIVE = 1.0


class Statuses:
    """The statuses of the jobs of one namespace. Who supervises a job reads what is written; whoever only looks asks."""

    def __init__(self, cluster: Cluster, store: Store, coordinators: Coordinators, holds: Holds) -> None:
        self._cluster, self._store, self._coordinators, self._holds = cluster, store, coordinators, holds
        self._live: dict[str, tuple[float, JobStatus]] = {}
        self._silent: set[str] = set()

    async def status(self, name: str) -> JobStatus | None:
        """Return the newest status that can be had, None where there is none, or no such job."""
        stored = await self._store.load(name)
        if stored is None:
            return None
        written = await self._written(stored.record)
        if self._holds.holds(name) or stored.record.finished:
            return written
        told = await self._asked(stored)
        if told is None:
            # It took a while to find that out, and the next coordinator may have written meanwhile.
            return await self._written(stored.record)
        return written if written is not None and written.fence > told.fence else told

    async def age(self, name: str, status: JobStatus) -> float | None:
        """Return how many seconds ago a status was given by the coordinator itself, or else written, by the server's clock."""
        known = self._live.get(status.uid)
        if known is not None and known[1] is status:
            return max(0.0, asyncio.get_running_loop().time() - known[0])
        stored = await self._store.load(name)
        try:
            return None if stored is None else await self._store.status_age(stored.record)
        except BackendError as error:
            log.debug("job=%s: cannot determine how old the job status is: %s", name, error)
            return None

    def silent(self, uid: str) -> bool:
        """Return whether the coordinator of a job did not answer when it was asked last."""
        return uid in self._silent

    async def written(self, name: str) -> JobStatus | None:
        """Return what the coordinator wrote down last, as the watch told of it."""
        stored = await self._store.load(name)
        return None if stored is None else await self._written(stored.record)

    async def _written(self, record: JobRecord) -> JobStatus | None:
        try:
            return await self._store.status(record)
        except UnreadableStatusError as error:
            log.warning(
                "job=%s: the supervisor cannot read the job status (%s); it continues without the status", record.name, error
            )
            return None

    async def _asked(self, stored: Stored) -> JobStatus | None:
        """Return what the coordinator says now, None where it cannot be asked."""
        record, now = stored.record, asyncio.get_running_loop().time()
        known = self._live.get(record.uid)
        if known is not None and now - known[0] < _LIVE:
            return known[1]
        fresh, ref = self._cluster.fresh, self._store.ref(record)
        self._silent.discard(record.uid)
        try:
            pods = self._cluster.cache.pods_of(record.uid) if fresh else await self._cluster.pods_of(ref)
            mine = (p for p in pods if p.labels.part is Part.COORDINATOR and p.labels.incarnation == record.term)
            pod = next((p for p in mine if p.phase == "Running" and p.ip and not p.deleting), None)
            if pod is None:
                return None
            told = await self._coordinators.status(ref, stored.plan, pod)
        except BackendError as error:
            log.debug("job=%s: the coordinator did not return the job status: %s", record.name, error)
            if not isinstance(error, ApiError) or error.status >= 500:  # the API server, for a pod that it does not reach
                self._silent.add(record.uid)
            return None
        # One backend may be asked for many jobs, and what is old is of no use.
        self._live = {uid: heard for uid, heard in self._live.items() if now - heard[0] < _LIVE} | {record.uid: (now, told)}
        return told
