"""Asking the API server whether it would take a wrapper and all that is in it, before anything of it is created.

A controller finds out only later what of a wrapper's contents is refused, and tries it again for a while; so the components and
a pod of each set are asked for, too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.client import parse
from rallypoint.backends.kubernetes.errors import ApiError, never_fits, submit_error
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.wrapped.kinds import KINDS, WRAPPING
from rallypoint.backends.kubernetes.wrapped.objects import wrappers_of
from rallypoint.backends.kubernetes.wrapped.podsets import pod_sets
from rallypoint.wire.plan import Kind

__all__ = ["check"]

_PLURALS = {"NetworkPolicy": "networkpolicies", "Secret": "secrets"}

_INSTALLED_BY = {(each.version, each.kind): each.installed_by for each in WRAPPING.values()}


async def check(cluster: Cluster, blueprint: Blueprint) -> None:
    """Raise `SubmitError` for what the API server would refuse; creates nothing."""
    configmap, *beside, wrapper = blueprint.objects
    await _ask(cluster, configmap, cluster.path("configmaps"), "the job's ConfigMap")
    for manifest in beside:
        kind = str(manifest["kind"])
        await _ask(cluster, manifest, cluster.path(_PLURALS[kind]), f"the job's {kind}")
    await _free(cluster, blueprint)
    for manifest in (wrapper, *_components(wrapper)):
        path = await _path(cluster, manifest)
        await _ask(cluster, manifest, path, f"the {manifest['kind']}")
    for number, pod in enumerate(_pods(wrapper)):
        await _ask(cluster, pod, cluster.path("pods"), f"a pod of set {number}")


async def _free(cluster: Cluster, blueprint: Blueprint) -> None:
    """See to it that the wrapper's name is not somebody else's."""
    kind, name = blueprint.plan.kind, blueprint.plan.name
    try:
        found = await wrappers_of(cluster, kind).get(name, now=True)
    except ApiError as error:
        if error.status != 403:
            raise
        return  # the dry run says what may not be done
    if found is not None and not found.job_uid:
        raise SubmitError(f"metadata.name: {WRAPPING[kind].kind} {name} already exists and was not created by Rallypoint")


async def _path(cluster: Cluster, manifest: Mapping[str, Any]) -> str:
    """Return the path of a kind's objects, as the API server tells it; raises `SubmitError` for a kind that it has not."""
    version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
    known = KINDS.get((version, kind))
    path = f"/apis/{version}" if "/" in version else f"/api/{version}"
    try:
        told = await parse(await cluster.api.request("GET", path), f"GET {path}")
    except ApiError as error:
        if error.status != 404:
            raise
        told = {}
    plurals = [r["name"] for r in told.get("resources") or () if r.get("kind") == kind and "/" not in r["name"]]
    if not plurals:
        owner = _INSTALLED_BY[version, kind] if known is not None else "its controller"
        raise SubmitError(f"kind: this cluster does not have the kind {kind} of API {version}; {owner} is not installed")
    return f"{path}/namespaces/{cluster.namespace}/{plurals[0]}"


async def _ask(cluster: Cluster, manifest: Mapping[str, Any], path: str, what: str) -> None:
    try:
        await cluster.api.request("POST", path, query={"dryRun": "All"}, body=dict(manifest))
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return
        if error.transient:
            raise
        if "exceeded quota" not in error.said or never_fits(error.said):
            raise submit_error(error, namespace=cluster.namespace, what=what) from error


def _components(wrapper: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if KINDS.get((str(wrapper["apiVersion"]), str(wrapper["kind"]))) is Kind.APPWRAPPER:
        yield from (copy.deepcopy(component["template"]) for component in wrapper["spec"]["components"])


def _pods(wrapper: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a pod of each set, as the training operator would name it."""
    for number, pods in enumerate(pod_sets(wrapper)):
        template = copy.deepcopy(pods.template)
        metadata = {**(template.get("metadata") or {}), "name": f"{wrapper['metadata']['name']}-check-{number}"}
        spec = template["spec"] | {"restartPolicy": template["spec"].get("restartPolicy", "Never")}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
