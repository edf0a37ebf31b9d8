"""The blueprint of a job on Kubernetes, with one role or with several."""

from __future__ import annotations

from rallypoint.backends.contract import Blueprint
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, draw_one
from rallypoint.backends.kubernetes.roles.blueprint import draw as draw_roles
from rallypoint.job import ElasticJob
from rallypoint.job.compile_roles import has_roles
from rallypoint.wire.plan import OrphanPolicy

__all__ = ["draw"]


def draw(job: ElasticJob, *, namespace: str, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
    """Return the blueprint of a job; raises `SubmitError` for one that cannot run as pods."""
    if has_roles(job):
        return draw_roles(job, namespace=namespace, uid=PLACEHOLDER, orphan_policy=orphan_policy)
    return draw_one(job, namespace=namespace, orphan_policy=orphan_policy)
