"""Being a job's only supervisor: an annotation of the job's ConfigMap names the process, and that process's Lease beats.

It is taken by compare-and-swap. One that names a process whose Lease is gone, or was not renewed for a while, is taken over.
One reading of the Lease decides, by the API server's clock (`lease.py`); for a Lease of an older version several readings
decide, on our own clock. A process that was frozen so long finds another's name there when it wakes, and stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.contract import BackendError, HeldError, JobNotFoundError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import JSON_PATCH, MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.heartbeat import health_of, lease_of
from rallypoint.backends.kubernetes.lease import SILENT
from rallypoint.backends.kubernetes.machines import OVERDUE, Machines
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import HOLDER, ConfigMapView
from rallypoint.backends.uninterrupted import uninterrupted
from rallypoint.wire import env

__all__ = ["Holds"]

log = logging.getLogger(__name__)

#: How often a hold is given back that could not be, and the pause between, in seconds.
_TRIES, _PAUSE = 6, 5.0

#: Who holds which job in this process, whatever backend and event loop they use: by the uid of the job's ConfigMap. No two
#: clusters share it, and it is the same however the cluster is reached.
_here: dict[str, str] = {}


class Holds:
    """The holds of one backend. `silent`: seconds without a beat until another process counts as gone."""

    def __init__(self, cluster: Cluster, store: Store, machines: Machines, *, silent: float = SILENT) -> None:
        self._cluster, self._store, self._machines, self._silent = cluster, store, machines, silent
        #: The last beat that was seen of each other process, and since when on our own clock.
        self._beats: dict[str, tuple[str, float]] = {}
        self._mine: dict[str, str] = {}
        self._uids: dict[str, str] = {}

    async def require_free(self, name: str, me: str) -> None:
        """Raise `HeldError` where another process than `me` holds a job and is not known to be gone; changes nothing."""
        view = await self._store.view(name, now=True)
        if view is not None and view.uid in _here:
            return  # `take` says by whom
        # This process: left of a hold that was not given back, since a hold that lasts is in `_here`.
        if view is not None and view.holder and view.holder != me:
            await self._see_gone(view)

    async def take(self, name: str, me: str, holder: str) -> None:
        """Become the supervisor `me` of a job, `holder` in words. Raises `HeldError` and `JobNotFoundError`."""
        uid = (await self._job(name)).uid
        if uid in _here:
            raise HeldError(name, _here[uid])
        _here[uid] = f"{holder} (process {os.getpid()}, this one)"
        try:
            await self._take(name, uid, me)
        except BaseException:
            _here.pop(uid, None)
            raise
        self._mine[name], self._uids[name] = me, uid

    async def _job(self, name: str) -> ConfigMapView:
        view = await self._store.view(name, now=True)
        if view is None:
            raise JobNotFoundError(f"job {name!r} not found")
        return view

    async def _take(self, name: str, uid: str, me: str) -> None:
        while True:
            view = await self._job(name)
            if view.uid != uid:
                raise JobNotFoundError(f"job {name!r} was deleted, and created again by another client")
            if view.holder and view.holder != me:
                await self._see_gone(view)
            change = {"metadata": {"resourceVersion": view.version, "annotations": {HOLDER: me}}}
            try:
                changed = await self._cluster.patch("configmaps", view.name, change, MERGE_PATCH)
            except ApiError as error:
                if error.status in (404, 409):
                    continue
                raise
            self._cluster.cache.jobs.put(changed)
            if view.holder and view.holder != me:
                log.info(
                    "job=%s: this process now supervises the job, because supervisor %s is no longer running", name, view.holder
                )
                await self._tidy(view.holder)
            return

    async def _see_gone(self, view: ConfigMapView) -> None:
        """Return when the holder of a job is gone; raises `HeldError` as long as that is not known."""
        lease = await self._cluster.get("leases", lease_of(view.holder))
        if lease is None:
            return
        health = await health_of(self._cluster, lease, silent=self._silent)
        if health.gone or await self._is_lost(lease, health.age):
            return
        if health.age is not None and os.environ.get(env.POD_NAME):
            # We stand by: looked at again when its next renewal is overdue.
            again = max(OVERDUE + 0.5 - health.age, 1.0)
            asyncio.get_running_loop().call_later(again, self._cluster.cache.tell, view.job)
        beat, now = str(lease["metadata"].get("resourceVersion")), asyncio.get_running_loop().time()
        known = self._beats.get(view.holder)
        if known is None or known[0] != beat:
            known = self._beats[view.holder] = (beat, now)
        if now - known[1] < self._silent:
            raise HeldError(view.job, await self._words(view))

    async def _is_lost(self, lease: Mapping[str, Any], age: float | None) -> bool:
        """Return whether a supervisor in a pod is lost with its machine: neither of them renews its Lease."""
        owner = next((one for one in lease["metadata"].get("ownerReferences") or () if one.get("kind") == "Pod"), None)
        if owner is None or age is None:
            return False
        pod = await self._cluster.get("pods", str(owner.get("name")))
        if pod is None or pod["metadata"].get("uid") != owner.get("uid"):
            return True
        host = str((pod.get("spec") or {}).get("nodeName") or "")
        # Asked each time: that a Lease stands still is known by two readings.
        overdue = await self._machines.overdue(host) if host else 0.0
        return bool(overdue) and age >= OVERDUE

    async def _words(self, view: ConfigMapView) -> str:
        try:
            stored = await self._store.load(view.job)
        except BackendError:
            stored = None
        holder = None if stored is None else stored.record.holder
        return holder.describe() if holder is not None and holder.id == view.holder else f"process {view.holder}"

    async def _tidy(self, holder: str) -> None:
        self._beats.pop(holder, None)
        try:
            await self._cluster.delete("leases", lease_of(holder))
        except BackendError as error:
            log.info("cannot delete the Kubernetes Lease of supervisor %s, which is no longer running: %s", holder, error)

    def check(self, view: ConfigMapView | None) -> None:
        """Raise `HeldError` for a job that this process held and that another has taken over meanwhile."""
        if view is None:
            return
        me = self._mine.get(view.job)
        if me is not None and view.holder != me:
            raise HeldError(view.job, f"process {view.holder or 'nobody'}")

    def holds(self, name: str) -> str:
        """Return under which id this backend holds a job, "" where it does not."""
        return self._mine.get(name, "")

    async def give_back(self, name: str) -> None:
        """Be its supervisor no more; the next one need not wait until this process has ended.

        That is written also where this is cancelled: this process may live on for other jobs, and its lease with it.
        """
        me = self._mine.pop(name, None)
        try:
            if me is not None:
                await uninterrupted(self._clear(name, me))
        finally:
            _here.pop(self._uids.pop(name, ""), None)

    async def _clear(self, name: str, me: str) -> None:
        place = f"/metadata/annotations/{HOLDER.replace('/', '~1')}"
        change = [{"op": "test", "path": place, "value": me}, {"op": "remove", "path": place}]
        for attempt in range(1, _TRIES + 1):
            try:
                self._cluster.cache.jobs.put(
                    await self._cluster.patch("configmaps", names.job_configmap(name), change, JSON_PATCH)
                )
            except ApiError as error:
                # Gone with its job, or another's by now.
                if error.status in (400, 404, 422):
                    return
                problem: BackendError = error
            except BackendError as error:
                problem = error
            else:
                return
            if attempt == _TRIES:
                log.warning(
                    "job=%s: this process has stopped supervising the job, but cannot record this in the job's ConfigMap: %s",
                    name,
                    problem,
                )
                return
            await asyncio.sleep(_PAUSE)
