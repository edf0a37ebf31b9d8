"""Jobs with several roles: what of them a backend does not run, said before anything of the job is created, and the policy by
which their conductor decides. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.backends.contract import SubmitError
from rallypoint.job import ElasticJob, compile_plan
from rallypoint.job.compile_roles import ROLE_RESETS
from rallypoint.job.role import SIMPLE, InstanceResources
from rallypoint.supervision.role_records import ConductorPolicy, Level, RolePolicy
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import role_plans

__all__ = ["RolesError", "ignored_master", "isolation", "only_plan", "orphan_notes", "policy_of", "refuse_node_groups"]


class RolesError(SubmitError):
    """A job needs what a backend lacks to run several roles; nothing of it was created.

    Attributes:
        job: the job, which is valid.
    """

    def __init__(self, job: ElasticJob, *, backend: str, missing: tuple[str, ...]) -> None:
        names = ", ".join(role.name for role in job.roles)
        what = f"has {len(job.roles)} roles ({names})" if len(job.roles) > 1 else f"has the role {names}"
        super().__init__(
            f"roles: the {backend} backend runs one elastic role, but job {job.name} {what}; not supported yet: "
            f"{', '.join(missing)}; nothing was started. Run each elastic role as a job of its own"
        )
        self.job = job


def only_plan(job: ElasticJob, *, backend: str, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Plan:
    """Return the plan of a job with one elastic role; raises `RolesError` for every other job."""
    refuse_node_groups(job, backend=backend)
    missing = tuple(_missing(job))
    if missing:
        raise RolesError(job, backend=backend, missing=missing)
    (plan,) = compile_plan(job, orphan_policy=orphan_policy)
    return plan


def refuse_node_groups(job: ElasticJob, *, backend: str) -> None:
    """Raise `SubmitError` for a role whose nodes are to be replaced together; on one machine, there is nothing to replace."""
    for role in job.roles:
        if role.node_group_failover.label and backend != "local":
            raise SubmitError(
                f"roles.{role.name}.node_group_failover: not supported by the {backend} backend; remove the field"
            )


def _missing(job: ElasticJob) -> Iterator[str]:
    if len(job.roles) > 1:
        yield "several roles in one job"
    for role in job.roles:
        if role.launch == SIMPLE:
            yield f"launch simple ({role.name})"
        if role.instance_resources != InstanceResources():
            yield f"instance_resources ({role.name})"
    if job.groups:
        yield "groups"


def policy_of(plan: Plan) -> ConductorPolicy:
    """Return how the conductor of a job with this plan decides: its roles in their groups, and its budgets."""
    return ConductorPolicy(
        roles=tuple(
            RolePolicy(
                name=role.name,
                elastic=role.elastic,
                units=role.units,
                per_group=1 if role.elastic else role.per_group,
                place="" if role.elastic else role.place,
                driver=role.driver,
                on_failure=Level(role.on_failure),
                grace=role.grace,
            )
            for role in role_plans(plan)
        ),
        node_max_restart=plan.budgets.node_replacements,
        role_max_reset=ROLE_RESETS,
        job_max_restart=plan.budgets.retry_limit,
        master_max_restart=plan.budgets.coordinator_replacements,
    )


def isolation(job: ElasticJob) -> tuple[str, ...]:
    """Return the fields of a job that ask for machines with a resource of their own."""
    return tuple(
        field
        for field, value in (("master.isolation", job.master.isolation), ("worker_isolation", job.worker_isolation))
        if value
    )


def ignored_master(job: ElasticJob) -> tuple[str, ...]:
    """Return the fields of `master` that are given and have no effect on a backend whose coordinator has fixed resources."""
    master = job.master
    given = (("cpu", master.cpu), ("memory", master.memory), ("create_timeout", master.create_timeout))
    return tuple(f"master.{name}" for name, value in given if value)


def orphan_notes(plan: Plan) -> Iterator[str]:
    """Yield what of the orphan policy has no effect on the simple roles of a job."""
    simple = [role.name for role in role_plans(plan) if not role.elastic and role.total]
    if simple and plan.orphan_policy is OrphanPolicy.STOP:
        told = "stop applies to elastic roles only; without a supervisor, instances of simple roles continue"
        yield f"fault_tolerance.orphan_policy: {told} ({', '.join(simple)})"
