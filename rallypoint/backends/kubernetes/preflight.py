"""Whether jobs can run in a namespace of a cluster, before there is one: is it there, and may we do what we have to?

The API server is asked about each right by itself (SelfSubjectAccessReview), which every authorizer answers truly; a list of
all rights may be incomplete. Nothing is created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.findings import Findings
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import Api, parse
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.rbac import SUPERVISOR, WRAPPERS, Grant
from rallypoint.backends.kubernetes.watching.cluster import Cluster, joined
from rallypoint.backends.kubernetes.wrapped.kinds import WRAPPING
from rallypoint.wire.plan import Kind

__all__ = ["examine", "missing"]

_REVIEW = "authorization.k8s.io/v1"

#: Questions that are under way at the same moment.
_AT_ONCE = 8


async def examine(access: Access) -> Findings:
    """Return what is missing for jobs there. What is missing for jobs of other kinds alone is a note.

    Raises `BackendError` where the cluster does not answer, or not to us.
    """
    async with joined(access) as cluster:
        await _answers(cluster.api)
        namespace = await _namespace(cluster)
        if namespace:
            return Findings(problems=(namespace,))
        problems = _told(await missing(cluster, SUPERVISOR), cluster.namespace)
        notes = [note for kind in WRAPPING if (note := await _of_kind(cluster, kind))]
        return Findings(problems=problems, notes=tuple(notes))


async def missing(cluster: Cluster, grants: Sequence[Grant]) -> tuple[Grant, ...]:
    """Return those grants that we have not, each with the verbs that are refused; raises `BackendError`."""
    asked = [(grant, verb) for grant in grants for verb in grant.verbs]
    turn = asyncio.Semaphore(_AT_ONCE)

    async def allowed(grant: Grant, verb: str) -> bool:
        async with turn:
            return await _allowed(cluster, grant, verb)

    answers = await asyncio.gather(*(allowed(*each) for each in asked))
    refused = [each for each, answer in zip(asked, answers, strict=True) if not answer]
    return tuple(
        Grant(group=grant.group, resource=grant.resource, verbs=verbs, why=grant.why)
        for grant in grants
        if (verbs := tuple(verb for each, verb in refused if each is grant))
    )


async def _answers(api: Api) -> None:
    try:
        await api.request("GET", "/version")
    except ApiError as error:
        if error.status == 401:
            reason = error.said or error
            raise BackendError(f"the API server rejected the credentials; log in again ({reason})") from error
        if error.status != 403:  # some clusters do not tell their version
            raise


async def _namespace(cluster: Cluster) -> str:
    """Return that there is no such namespace, "" where there is one or nobody may tell us."""
    try:
        await cluster.api.request("GET", f"/api/v1/namespaces/{cluster.namespace}")
    except ApiError as error:
        if error.status == 404:
            return f"namespace: {cluster.namespace!r} not found on this cluster; create it or choose another"
        if error.status == 401:
            reason = error.said or error
            raise BackendError(f"the API server rejected the credentials; log in again ({reason})") from error
        if error.status != 403:
            raise
    return ""


async def _allowed(cluster: Cluster, grant: Grant, verb: str) -> bool:
    resource, _, part = grant.resource.partition("/")
    wanted = {"namespace": cluster.namespace, "verb": verb, "group": grant.group, "resource": resource}
    if part:
        wanted["subresource"] = part
    body = {"apiVersion": _REVIEW, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": wanted}}
    path = f"/apis/{_REVIEW}/selfsubjectaccessreviews"
    answer: Any = await parse(await cluster.api.request("POST", path, body=body), f"POST {path}")
    return bool((answer.get("status") or {}).get("allowed"))


async def _of_kind(cluster: Cluster, kind: Kind) -> str:
    """Return why there can be no jobs of a kind that another controller runs, "" where there can be."""
    wrapping = WRAPPING[kind]
    jobs = f"required only for jobs of kind {kind.value}"
    try:
        told = await parse(await cluster.api.request("GET", f"/apis/{wrapping.version}"), f"GET /apis/{wrapping.version}")
    except ApiError as error:
        if error.status != 404:
            return f"{wrapping.kind}: cannot check whether {wrapping.installed_by} is installed ({error.said})"
        told = {}
    if not any(resource.get("name") == wrapping.plural for resource in told.get("resources") or ()):
        return f"{wrapping.kind}: {wrapping.installed_by} is not installed ({jobs})"
    group = wrapping.version.partition("/")[0]
    groups = (group, "") if kind is Kind.APPWRAPPER else (group,)
    refused = await missing(cluster, [grant for grant in WRAPPERS if grant.group in groups])
    return "; ".join(f"{sentence} ({jobs})" for sentence in _told(refused, cluster.namespace, wrappers=True))


def _told(refused: Iterable[Grant], namespace: str, *, wrappers: bool = False) -> tuple[str, ...]:
    """Return a sentence for each grant that is missing, the last of them with what gives it."""
    sentences = [
        f"not allowed in namespace {namespace}: {', '.join(grant.verbs)} {_full(grant)} ({grant.why})" for grant in refused
    ]
    if sentences:
        options = f"--namespace {namespace}{' --wrappers' if wrappers else ''}"
        sentences[-1] += f"; `rallypoint manifests rbac {options}` prints the required Role"
    return tuple(sentences)


def _full(grant: Grant) -> str:
    return f"{grant.resource}.{grant.group}" if grant.group else grant.resource
