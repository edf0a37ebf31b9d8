"""How Kueue is told what of a job is admitted together. Pure.

The base group is what the job cannot run without: MIN nodes and the coordinator, admitted as one or not at all. Each node above
MIN is a workload of its own, which may come later, or be taken away, without any harm to the group. The names of groups
do not know the attempt: the coordinator that stays through a reset stays in the group, and with it the quota.

The shape of a pod is told by us (`role-hash`): a replacement keeps off the machine of its predecessor, and Kueue would take
a pod with another affinity for a new kind of member and admit the whole group anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import Role
from rallypoint.wire.plan import Plan

__all__ = [
    "FINALIZER",
    "GROUP",
    "QUEUE",
    "QUEUE_PRIORITY",
    "RETRIABLE",
    "SHAPE",
    "TOTAL",
    "Admission",
    "admission",
    "queue_of",
]

_DOMAIN = "kueue.x-k8s.io/"
QUEUE = f"{_DOMAIN}queue-name"
QUEUE_PRIORITY = f"{_DOMAIN}priority-class"
GROUP = f"{_DOMAIN}pod-group-name"
TOTAL = f"{_DOMAIN}pod-group-total-count"

#: Annotation: pods of one group with the same value are of one kind.
SHAPE = f"{_DOMAIN}role-hash"

#: With it Kueue keeps a pod of a group that has ended, until another takes its place or the group is over.
FINALIZER = f"{_DOMAIN}managed"

#: Annotation of a pod, "false": nobody takes its place. A group whose pods have all ended is over once one of them says so.
RETRIABLE = f"{_DOMAIN}retriable-in-group"


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Labels and annotations for one pod."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def queue_of(role: Role) -> str:
    """Return the local queue: the role's, or the one that Kueue's own label names on the pods; "" for none."""
    return role.queue or role.labels.get(QUEUE, "")


def admission(job: JobRef, *, role: Role, plan: Plan, node: int | None) -> Admission:
    """Return what a node's pod, or with `node` None the coordinator's, says to Kueue; nothing without a queue."""
    queue = queue_of(role)
    if not queue:
        return Admission()
    labels = {QUEUE: queue, **({QUEUE_PRIORITY: role.queue_priority} if role.queue_priority else {})}
    if node is not None and node >= plan.min_nodes:
        return Admission(labels=labels)
    shape = Part.COORDINATOR.value if node is None else Part.NODE.value
    if plan.queue_group:  # an elastic role of a job with several: all its roles are one group
        shape = shape if node is None else f"{shape}-{role.name}"
        return Admission(
            labels={**labels, GROUP: plan.queue_group},
            annotations={TOTAL: str(plan.queue_group_total), SHAPE: shape},
        )
    return Admission(
        labels={**labels, GROUP: names.group(job)},
        annotations={TOTAL: str(plan.min_nodes + 1), SHAPE: shape},
    )
