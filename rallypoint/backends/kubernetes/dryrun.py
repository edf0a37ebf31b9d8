"""Dry runs: what the API server would refuse of a submission, before anything of it is created.

A dry run goes through everything that a real request does: permissions, schemas, quotas, webhooks, pod security.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.errors import ApiError, never_fits, submit_error
from rallypoint.backends.kubernetes.labels import JOB, PART, PLACE, Part
from rallypoint.backends.kubernetes.watching.cluster import Cluster, joined
from rallypoint.backends.kubernetes.wrapped.submission import check as check_wrapped
from rallypoint.wire.plan import Kind

__all__ = ["Refusal", "check", "refusals", "samples"]

#: Plurals of the objects that a job has.
_KINDS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Pod": "pods",
    "NetworkPolicy": "networkpolicies",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An object that the API server would not take, and why."""

    kind: str
    name: str
    reason: str


async def refusals(access: Access, blueprint: Blueprint) -> tuple[Refusal, ...]:
    """Return what would be refused now; of objects that differ by number alone the first one is asked for.

    Raises `BackendError` where the server does not answer.
    """
    found = []
    async with joined(access) as cluster:
        if blueprint.plan.kind is not Kind.PODS:
            return await _of_wrapper(cluster, blueprint)
        for manifest in samples(blueprint):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            try:
                await cluster.create(_KINDS[kind], manifest, dry_run=True)
            except ApiError as error:
                if error.reason == "AlreadyExists":  # a submission comes to terms with the job that is there
                    continue
                told: SubmitError = submit_error(error, namespace=cluster.namespace, what=f"the {kind}")
                found.append(Refusal(kind=kind, name=name, reason=str(told)))
    return tuple(found)


async def _of_wrapper(cluster: Cluster, blueprint: Blueprint) -> tuple[Refusal, ...]:
    try:
        await check_wrapped(cluster, blueprint)
    except SubmitError as error:
        wrapper = blueprint.objects[-1]
        return (Refusal(kind=wrapper["kind"], name=wrapper["metadata"]["name"], reason=str(error)),)
    return ()


async def check(cluster: Cluster, blueprint: Blueprint) -> None:
    """Raise `SubmitError` for what the API server would refuse; creates nothing."""
    for manifest in samples(blueprint):
        kind = manifest["kind"]
        what = f"the {manifest['metadata']['labels'][PART]}'s {kind}"
        try:
            await cluster.create(_KINDS[kind], manifest, dry_run=True)
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
        if kind not in _KINDS:
            raise SubmitError(f"objects: kind {kind!r} is not allowed; expected one of {', '.join(_KINDS)}")
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
