"""Objects that an earlier submission of a finished job has left, brought up to date for the plan of now.

A job keeps its uid when it is submitted again, and so the names of the objects that serve all of its attempts. None of its pods
runs when an attempt begins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import UID
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster

__all__ = ["bring_up_to_date", "remove_network_policy"]

log = logging.getLogger(__name__)


async def bring_up_to_date(
    cluster: Cluster, kind: str, manifest: Mapping[str, Any], found: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the object of the job as it is now; `found` is what is there. Raises `ApiError`.

    A NetworkPolicy gets the rules of `manifest`. A Secret without some of the keys, such as certificates, is replaced: it may
    be immutable.
    """
    name = manifest["metadata"]["name"]
    if kind == "networkpolicies" and found.get("spec") != manifest["spec"]:
        return await cluster.patch(kind, name, {"spec": manifest["spec"]}, MERGE_PATCH)
    if kind == "secrets" and manifest["data"].keys() - (found.get("data") or {}).keys():
        await cluster.delete(kind, name, uid=found["metadata"]["uid"])
        return await cluster.create(kind, manifest)
    return found


async def remove_network_policy(cluster: Cluster, job: JobRef) -> None:
    """Delete the NetworkPolicy of a job that wants none any more; one that cannot be deleted is logged."""
    name = names.network_policy(job)
    try:
        found = await cluster.get("networkpolicies", name)
        if found is not None and (found["metadata"].get("labels") or {}).get(UID) == job.uid:
            await cluster.delete("networkpolicies", name, uid=found["metadata"]["uid"])
    except ApiError as error:
        log.warning("job=%s: cannot delete NetworkPolicy %s of the last submission: %s", job.name, name, error.said or error)
