"""Compile a job with several or simple roles to one plan, which contains the plans of its roles. Pure."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from rallypoint.job.compile import compile_plan
from rallypoint.job.model import ElasticJob
from rallypoint.job.placement import counts, place_names
from rallypoint.job.role import SIMPLE, InstanceResources, Role
from rallypoint.wire import codec
from rallypoint.wire.plan import Entry, OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan, write_share
from rallypoint.wire.sections import replaced

__all__ = ["ROLE_RESETS", "compile_roles", "has_roles", "one_role"]

#: Resets of one role within an attempt of the job.
ROLE_RESETS = 3

#: Seconds that a role has beyond its own grace period before it is ended by force, as nodes have.
_SLACK = 5.0


def has_roles(job: ElasticJob) -> bool:
    """Return whether a job needs a conductor: it is more than one elastic role."""
    needs = any(role.launch == SIMPLE or role.instance_resources != InstanceResources() for role in job.roles)
    return needs or len(job.roles) > 1 or bool(job.groups)


def compile_roles(job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Plan:
    """Return the plan of a job with roles; `orphan_policy` is as in `compile_plan`."""
    plans = compile_plan(job, orphan_policy=orphan_policy)
    named = place_names([group.name for group in job.groups], [role.name for role in job.roles])
    places = {name: place for place, group in zip(named, job.groups, strict=True) for name in group.roles}
    roles = tuple(_role(role, plan, places.get(role.name, "")) for role, plan in zip(job.roles, plans, strict=True))
    nodes = sum(role.groups for role in roles)
    return replaced(
        plans[0],
        role="",
        min_nodes=nodes,
        max_nodes=nodes,
        node_unit=1,
        nproc_per_node=1,
        entry=Entry.COMMAND,
        entrypoint="",
        args=(),
        env={},
        workdir="",
        setup=(),
        checkpoint_dir="",
        node_replacements=job.recovery.node_replacements,
        retry_limit=job.fault_tolerance.retry_limit,
        roles=tuple(_json(role) for role in roles),
    )


def one_role(job: ElasticJob, name: str, *, job_name: str) -> ElasticJob:
    """Return the job that is one elastic role of another."""
    role = next(role for role in job.roles if role.name == name)
    return job.model_copy(update={"name": job_name, "roles": (role,), "groups": ()})


def _role(role: Role, plan: Plan, place: str) -> RolePlan:
    total, per_group = counts(role)
    elastic = role.launch != SIMPLE
    grace = plan.workers.stop_grace + _SLACK
    if elastic:
        resets = 0 if role.on_failure in {"job", "none"} else min(plan.budgets.retry_limit, ROLE_RESETS)
        plan = replaced(plan, name=f"{plan.name}-{role.name}", retry_limit=resets)
        plan = replaced(plan, forceful_deletion_grace=grace, deletion_on_failure_grace=0.0)
    return RolePlan(
        name=role.name,
        elastic=elastic,
        total=total,
        per_group=per_group,
        place=place,
        driver=role.driver is not False,
        on_failure=role.on_failure or "instance",
        devices=_devices(role),
        grace=grace,
        plan=_json(plan),
    )


def _devices(role: Role) -> str:
    """Return how many devices one instance has."""
    share = role.instance_resources.gpus
    if share is None and role.resources.gpus:
        share = Fraction(role.resources.gpus, role.nproc_per_node)
    return write_share(share) if share else ""


def _json(value: Any) -> dict[str, Any]:
    """Return a value of the wire as JSON, without what has its default."""
    found: dict[str, Any] = json.loads(codec.dumps_item(value))
    return found
