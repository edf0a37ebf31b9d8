"""The pods of all roles that Kueue admits as one group. Pure.

They are MIN nodes and the coordinator of each elastic role, and all pods of simple roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.kueue import (
    GROUP,
    QUEUE,
    QUEUE_PRIORITY,
    SHAPE,
    TOTAL,
    Admission,
    queue_of,
)
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.layout import elastic_roles, groups, places
from rallypoint.job import ElasticJob

__all__ = ["MOST_SHAPES", "Gang", "gang_of", "gang_problems", "unit_admission"]

#: Kinds of pods that Kueue takes in one group: the pod sets of one Workload.
MOST_SHAPES = 8


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A group of pods that is admitted as a whole, or not at all.

    Attributes:
        name: of the group; `total` is its number of pods.
        queue, priority: the local queue, and the priority class of the workload, "" for none.
    """

    name: str
    total: int
    queue: str
    priority: str = ""


def gang_of(ref: JobRef, job: ElasticJob) -> Gang | None:
    """Return the group of a job's pods; None without a queue. A role that names no queue has that of the others."""
    queue = next((found for role in job.roles if (found := queue_of(role))), "")
    if not queue:
        return None
    total = sum(role.nodes.min + 1 for role in elastic_roles(job)) + sum(1 for _ in groups(job))
    priority = next((role.queue_priority for role in job.roles if role.queue_priority), "")
    return Gang(name=names.group(ref), total=total, queue=queue, priority=priority)


def gang_problems(job: ElasticJob, *, coordinators: bool = True) -> Iterator[Wrong]:
    """Yield why the pods of a job, with those of its `coordinators`, cannot be admitted as one group."""
    for field, values in (
        ("queue", {role.name: queue_of(role) for role in job.roles}),
        ("queue_priority", {role.name: role.queue_priority for role in job.roles}),
    ):
        given = {name: value for name, value in values.items() if value}
        first = next(iter(given), "")
        for name, value in given.items():
            if value != given[first]:
                allowed = f"the same as of role {first} ({given[first]}), or no value; all roles are admitted as one group"
                yield Place(path=f"roles.{name}.{field}").refused(value, allowed)
    shapes = len(elastic_roles(job)) + len(places(job)) + bool(elastic_roles(job))
    if coordinators and any(queue_of(role) for role in job.roles) and shapes > MOST_SHAPES:
        yield Place(path="roles").wrong(
            f"{shapes} kinds of pods are not allowed with a queue; Kueue admits at most {MOST_SHAPES} as one group: one for "
            "each elastic role, for each simple role or group of roles, and for all coordinators. Collocate roles in groups, "
            "or run the job without a queue"
        )


def unit_admission(gang: Gang | None, *, shape: str) -> Admission:
    """Return what a pod of simple roles says to Kueue; `shape` is the same for pods of one kind."""
    if gang is None:
        return Admission()
    return Admission(
        labels={QUEUE: gang.queue, GROUP: gang.name, **({QUEUE_PRIORITY: gang.priority} if gang.priority else {})},
        annotations={TOTAL: str(gang.total), SHAPE: f"unit-{shape}"},
    )
