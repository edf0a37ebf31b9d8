"""Update of the objects that an earlier submission of a job has created to the plan of its new submission.

A job keeps its uid when it is submitted again, and the names of the objects that serve all attempts contain the uid. No pod of
the job runs when an attempt begins.
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
    """Update the existing object `found` if needed and return it. Raises `ApiError`.

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
    """Delete the NetworkPolicy of a job whose plan has none; a failure is logged."""
    name = names.network_policy(job)
    try:
        found = await cluster.get("networkpolicies", name)
        if found is not None and (found["metadata"].get("labels") or {}).get(UID) == job.uid:
            await cluster.delete("networkpolicies", name, uid=found["metadata"]["uid"])
    except ApiError as error:
        log.warning("job=%s: cannot delete NetworkPolicy %s of the last submission: %s", job.name, name, error.said or error)
