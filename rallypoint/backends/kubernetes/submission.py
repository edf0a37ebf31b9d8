"""Asking the API server whether it would take a job, before anything of it is created.

A dry run goes through everything that a real request does: permissions, schemas, quotas, webhooks, pod security.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.errors import ApiError, never_fits, submit_error
from rallypoint.backends.kubernetes.labels import JOB, PART, PLACE, Part
from rallypoint.backends.kubernetes.watching.cluster import Cluster

__all__ = ["KINDS", "check", "samples"]

#: Plurals of the objects that a job has.
KINDS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Pod": "pods",
    "NetworkPolicy": "networkpolicies",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
}


async def check(cluster: Cluster, blueprint: Blueprint) -> None:
    """Raise `SubmitError` for what the API server would refuse; creates nothing."""
    for manifest in samples(blueprint):
        kind = manifest["kind"]
        what = f"the {manifest['metadata']['labels'][PART]}'s {kind}"
        try:
            await cluster.create(KINDS[kind], manifest, dry_run=True)
        except ApiError as error:
            if error.transient and error.reason != "AlreadyExists":
                raise
            if not _harmless(error):
                raise submit_error(error, namespace=cluster.namespace, what=what) from error


def samples(blueprint: Blueprint) -> Iterator[dict[str, Any]]:
    """Yield one object of each sort: nodes of one role differ by number alone, and so do the pods of a simple role."""
    seen = set()
    for manifest in blueprint.objects:
        kind = manifest.get("kind")
        if kind not in KINDS:
            raise SubmitError(f"objects: kind {kind!r} is not allowed; expected one of {', '.join(KINDS)}")
        its = manifest["metadata"]["labels"]
        sort = (its.get(JOB), its[PART], its.get(PLACE), manifest["kind"])
        if sort not in seen:
            seen.add(sort)
            yield _alone(manifest) if its[PART] == Part.COORDINATOR.value else manifest


def _alone(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the coordinator's pod without a service account that need not be there."""
    manifest = copy.deepcopy(manifest)
    if manifest["spec"].get("serviceAccountName") == names.COORDINATOR_ROLE:
        del manifest["spec"]["serviceAccountName"]
    return manifest


def _harmless(error: ApiError) -> bool:
    """Return whether a refusal is about this moment: the name is taken, or a quota has no room that it will have again."""
    return error.reason == "AlreadyExists" or ("exceeded quota" in error.said and not never_fits(error.said))
