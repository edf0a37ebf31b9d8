"""What a job with several roles must be to run as pods, checked before anything is created. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rallypoint.backends.contract import SubmitError, role_job
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.parts import TRAINER, container_of, template_of
from rallypoint.backends.kubernetes.manifests.validation import role_problems
from rallypoint.backends.kubernetes.roles.gang import gang_problems
from rallypoint.backends.kubernetes.roles.layout import places, simple_roles
from rallypoint.backends.kubernetes.roles.resources import isolation_problems, problems
from rallypoint.job import ElasticJob, Role
from rallypoint.job.placement import counts
from rallypoint.job.role import ELASTIC, InstanceResources
from rallypoint.job.values import write_nodes
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import role_plan

__all__ = ["check", "ranges_in_groups"]

#: Characters of the name of a job.
_LONGEST = 52

#: Fields of a role that are one value of its pod: all roles of the pod must agree.
_OF_THE_POD = ("service_account", "priority_class", "scheduler_name")
_MAPS_OF_THE_POD = ("node_selector", "pod_security_context", "affinity")
_NAMED_OF_THE_POD = ("volumes", "init_containers", "sidecars")


def check(job: ElasticJob, plan: Plan, *, coordinators: bool = True) -> None:
    """Raise `SubmitError` with everything that keeps the job from running as pods, one line for each field.

    `coordinators`: its elastic roles have pods of their coordinators.
    """
    wrong: list[Wrong] = []
    for role in job.roles:
        wrong += role_problems(Place(path=f"roles.{role.name}"), _plan(plan, role), role)
    wrong += [
        *_needs(job),
        *_groups(job, pods=coordinators),
        *_agreement(job),
        *gang_problems(job, coordinators=coordinators),
        *_whole(job),
        *_names(job),
    ]
    if wrong:
        lines = "\n".join(f"{problem.path}: {problem.text}" for problem in dict.fromkeys(wrong))
        raise SubmitError(f"job {job.name} cannot run on Kubernetes:\n{lines}")


def _plan(plan: Plan, role: Role) -> Plan:
    return role_plan(plan, role.name).read()


def _needs(job: ElasticJob) -> Iterator[Wrong]:
    grouped = {name for group in job.groups for name in group.roles}
    for role in job.roles:
        place = Place(path=f"roles.{role.name}")
        if role.launch != ELASTIC:
            yield from problems(place, role, shares=role.name in grouped or counts(role)[1] > 1)
        elif role.instance_resources != InstanceResources() and role.name not in grouped:
            # Whole devices have become resources of the nodes.
            yield from problems(place, role, shares=False)
        if role.node_group_failover.label and role.name in grouped and role.launch == ELASTIC:
            yield place.at("node_group_failover").wrong(
                "is not allowed for a role in a group, whose pods stay on one machine; remove the field, or remove the role "
                "from the group"
            )


def _groups(job: ElasticJob, *, pods: bool) -> Iterator[Wrong]:
    """Yield why elastic roles cannot be in a group; `pods`: the job is of kind `pods`."""
    if pods:
        yield from ranges_in_groups(job)
        return
    for index, role in _grouped(job):
        yield Place(path=f"groups[{index}].roles").wrong(
            f"role {role.name} is elastic, and an AppWrapper cannot place it with other roles; remove {role.name} from "
            "the group, or run the job with kind pods"
        )


def ranges_in_groups(job: ElasticJob) -> Iterator[Wrong]:
    """Yield each elastic role of a group whose number of nodes is not fixed."""
    for _, role in _grouped(job):
        if role.nodes.min != role.nodes.max:
            allowed = f"one number of nodes, because {role.name} is in a group: each group has one node of each role"
            yield Place(path=f"roles.{role.name}").at("nodes").refused(write_nodes(role.nodes), allowed)


def _grouped(job: ElasticJob) -> Iterator[tuple[int, Role]]:
    """Yield the elastic roles of each group with the index of the group."""
    elastic = {role.name: role for role in job.roles if role.launch == ELASTIC}
    for index, group in enumerate(job.groups):
        yield from ((index, elastic[name]) for name in group.roles if name in elastic)


def _agreement(job: ElasticJob) -> Iterator[Wrong]:
    """Yield each field on which roles that share pods do not agree."""
    for roles in places(job).values():
        first, *others = roles
        for role in others:
            place = Place(path=f"roles.{role.name}")
            for field in _OF_THE_POD:
                if getattr(role, field) and getattr(first, field) and getattr(role, field) != getattr(first, field):
                    yield place.at(field).refused(getattr(role, field), _same(first, field))
            for field in _MAPS_OF_THE_POD:
                for key in _differ(getattr(first, field), getattr(role, field)):
                    yield place.at(field, key).refused(getattr(role, field)[key], _same(first, f"{field}.{key}"))
            for field in _NAMED_OF_THE_POD:
                for name in _differ(_named(getattr(first, field)), _named(getattr(role, field))):
                    yield place.at(field).wrong(f"{name!r} is not allowed; expected {_same(first, f'{field} {name!r}')}")


def _same(role: Role, what: str) -> str:
    return f"the same as {what} of role {role.name}, with which it shares pods"


def _differ(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    yield from (key for key, value in other.items() if key in one and one[key] != value)


def _named(items: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {str(item.get("name")): item for item in items}


def _whole(job: ElasticJob) -> Iterator[Wrong]:
    yield from isolation_problems("worker_isolation", job.worker_isolation)
    yield from isolation_problems("master.isolation", job.master.isolation)


def _names(job: ElasticJob) -> Iterator[Wrong]:
    for role in job.roles:
        name = role_job(job.name, role.name)
        if role.launch == ELASTIC and len(name) > _LONGEST:
            yield Place(path="name").refused(job.name, f"a shorter name; {name} may have at most {_LONGEST} characters")
    for role in simple_roles(job):
        # Containers of the template stand beside ours, whose names are those of the instances.
        ours = {f"{role.name}-{index}" for index in range(counts(role)[0])}
        spec = template_of(role, without=TRAINER)["spec"]
        beside = [str(one.get("name")) for one in (*(spec.get("containers") or ()), *role.sidecars, *role.init_containers)]
        for name, number in Counter(beside).items():
            if name in ours or number > 1:
                yield Place(path=f"roles.{role.name}").wrong(f"container {name!r} is not allowed; its name is that of another")
        if container_of(template_of(role)["spec"], TRAINER).get("resources"):
            at = Place(path=f"roles.{role.name}.pod_template.spec.containers.{TRAINER}.resources")
            yield at.wrong("is not allowed for a simple role; set instance_resources")
