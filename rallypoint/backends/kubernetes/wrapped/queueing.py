"""Kueue's own object for an AppWrapper that waits in one of its queues, its Workload.

Whether such a wrapper is suspended is Kueue's to say: it takes back what anybody else writes into `spec.suspend`. What it
heeds is `spec.active` of the Workload: one that is not active gives its quota back and is not admitted again.
"""

from __future__ import annotations

from rallypoint.backends.kubernetes.client import MERGE_PATCH, parse
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.watching.cluster import Cluster

__all__ = ["activate"]

_GROUP = "kueue.x-k8s.io"

#: Label of a Workload: the uid of the object that it stands for.
_OF = f"{_GROUP}/job-uid"


async def activate(cluster: Cluster, uid: str, *, active: bool) -> bool:
    """Let the Workloads of the object `uid` be admitted, or not; return whether there is one.

    A cluster without Kueue has none. Raises `ApiError`, for one where we may not look, too.
    """
    version = await _version(cluster)
    if not version:
        return False
    root = f"/apis/{version}/namespaces/{cluster.namespace}/workloads"
    found = parse(await cluster.api.request("GET", root, query={"labelSelector": f"{_OF}={uid}"}), f"GET {root}")
    items = found.get("items") or []
    for workload in items:
        # Nothing said means active.
        if (workload.get("spec") or {}).get("active", True) is not active:
            path = f"{root}/{workload['metadata']['name']}"
            await cluster.api.request("PATCH", path, body={"spec": {"active": active}}, kind=MERGE_PATCH)
    return bool(items)


async def _version(cluster: Cluster) -> str:
    """Return the version in which the server has Kueue's objects (`kueue.x-k8s.io/v1beta1`), "" for none."""
    path = f"/apis/{_GROUP}"
    try:
        told = parse(await cluster.api.request("GET", path), f"GET {path}")
    except ApiError as error:
        if error.status == 404:
            return ""
        raise
    return str((told.get("preferredVersion") or {}).get("groupVersion") or "")
