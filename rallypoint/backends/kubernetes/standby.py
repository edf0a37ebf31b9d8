"""Standby pod of a supervisor in the cluster, on another machine.

The pod that holds the job creates the other pod again when it is missing; the other pod waits and takes over when the holder is
gone (`hold.py`). A job keeps a supervisor when one machine is lost. A supervisor outside of such a pod has no standby:
a triggerer or a user starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import UID
from rallypoint.backends.kubernetes.machines import Machines
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.manifests.supervisor import supervisor_pod
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.wire import env

__all__ = ["other_of", "settle_supervisors", "standing_by"]

log = logging.getLogger(__name__)

#: Seconds between two checks of the other pod.
_LOOK = 10.0


@contextlib.asynccontextmanager
async def standing_by(cluster: Cluster, store: Store, machines: Machines, job: str) -> AsyncIterator[None]:
    """Keep a standby of this process running during the context; has no effect outside of a supervisor's pod."""
    mine = os.environ.get(env.POD_NAME, "")
    if not mine:
        yield
        return
    task = asyncio.create_task(_keep(cluster, store, machines, job, mine), name=f"standby of {job}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _keep(cluster: Cluster, store: Store, machines: Machines, job: str, mine: str) -> None:
    told = ""
    while True:
        try:
            await _ensure(cluster, store, machines, job, mine)
            told = ""
        except BackendError as error:
            if str(error) != told:
                log.warning("job=%s: the supervisor cannot start its standby pod: %s; retrying in %g s", job, error, _LOOK)
            told = str(error)
        await asyncio.sleep(_LOOK)


async def _ensure(cluster: Cluster, store: Store, machines: Machines, job: str, mine: str) -> None:
    """Create the other pod if it is missing; a pod on a lost machine is removed first."""
    stored = await store.load(job)
    if stored is None or stored.record.finished or stored.record.deletion:
        return
    spec, plan, ref = await store.spec(stored.record)
    name = other_of(ref, mine)
    if not name:
        return
    found = await cluster.get("pods", name)
    if found is not None:
        host = _host(found)
        lost = bool(host) and bool(await machines.overdue(host))
        if not lost and (found.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            return
        await cluster.delete("pods", name, uid=found["metadata"]["uid"], grace=0)
        reason = f"host {host} is lost" if lost else "the pod has ended"
        log.info("job=%s: the supervisor deleted its standby pod %s, because %s", job, name, reason)
    own = await cluster.get("pods", mine)
    if own is None:
        return
    hosts = frozenset(host for host in (_host(own), _host(found)) if host)
    manifest = supervisor_pod(
        ref, spec=spec, plan=plan, image=_image(own), account=_account(own), name=name, off=Exclusion(preferred=hosts)
    )
    await cluster.create("pods", manifest)


async def settle_supervisors(cluster: Cluster, machines: Machines, ref: JobRef) -> bool:
    """Return whether the supervisor pods of a job are gone; a pod that terminates on a lost machine is removed by force."""
    gone = True
    for name in (names.supervisor_pod(ref), names.standby_pod(ref)):
        found = await cluster.get("pods", name)
        if found is None or (found["metadata"].get("labels") or {}).get(UID) != ref.uid:
            continue
        gone, host = False, _host(found)
        if found["metadata"].get("deletionTimestamp") and host and await machines.overdue(host):
            await cluster.delete("pods", name, uid=found["metadata"]["uid"], grace=0)
    return gone


def other_of(ref: JobRef, mine: str) -> str:
    """Return the name of the other pod of the pair to which `mine` belongs; "" for any other pod. Pure."""
    pair = (names.supervisor_pod(ref), names.standby_pod(ref))
    return {pair[0]: pair[1], pair[1]: pair[0]}.get(mine, "")


def _host(pod: Mapping[str, Any] | None) -> str:
    return "" if pod is None else str((pod.get("spec") or {}).get("nodeName") or "")


def _image(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"]["containers"][0].get("image") or "")


def _account(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"].get("serviceAccountName") or "")
