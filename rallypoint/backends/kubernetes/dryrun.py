"""Asking the API server what it would refuse of a submission: all of it, and nothing is created."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.errors import ApiError, submit_error
from rallypoint.backends.kubernetes.submission import KINDS, samples
from rallypoint.backends.kubernetes.watching.cluster import Cluster, joined
from rallypoint.backends.kubernetes.wrapped.submission import check as check_wrapped
from rallypoint.wire.plan import Kind

__all__ = ["Refusal", "refusals"]


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
                await cluster.create(KINDS[kind], manifest, dry_run=True)
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
