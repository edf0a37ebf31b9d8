"""Which machines the pods of a job keep off, and how strictly. Pure.

A machine that was at fault in an attempt is left alone as long as another one can take the pod. Where every other machine is
gone too, a fault of the past must not keep the job from the machines that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.manifests.parts import template_of
from rallypoint.backends.kubernetes.watching.views import HostView, PodView
from rallypoint.job import Role
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Answer, Cause, FaultKind, Incident
from rallypoint.wire.plan import Plan

__all__ = ["bad_hosts", "choose_exclusion", "has_no_room_elsewhere", "left_hosts", "lost_hosts", "returned"]


def bad_hosts(record: JobRecord) -> frozenset[str]:
    """Return the machines that were at fault in the current attempt."""
    return _culprit_hosts(record, lambda incident: incident.answer is Answer.RETRY_ELSEWHERE)


def lost_hosts(record: JobRecord) -> frozenset[str]:
    """Return the machines that were lost in the current attempt; nothing is wrong with one that has come back."""
    return _culprit_hosts(record, lambda incident: incident.kind is FaultKind.NODE_LOST)


def _culprit_hosts(record: JobRecord, concerns: Callable[[Incident], bool]) -> frozenset[str]:
    """Return the hosts of the culprits of some incidents of the current attempt."""
    return frozenset(
        incident.culprit.host
        for incident in record.incidents
        if incident.id.attempt == record.attempt
        and concerns(incident)
        and incident.culprit is not None
        and incident.culprit.host
    )


def left_hosts(record: JobRecord, plan: Plan | None, hosts: Iterable[HostView]) -> frozenset[str]:
    """Return the machines of the groups that the nodes of the current attempt have left."""
    if plan is None or not record.left_groups:
        return frozenset()
    left = frozenset(filter(None, record.left_groups))
    return frozenset(host.name for host in hosts if host.labels.get(plan.node_group, "") in left)


def has_no_room_elsewhere(record: JobRecord, node: int, incarnation: int) -> bool:
    """Return whether a pod is the successor of one that found no room because it kept off machines that have come back."""
    return any(
        incident.id.attempt == record.attempt
        and (incident.id.node, incident.id.sequence) == (node, incarnation - 1)
        and incident.cause is Cause.EVACUATION
        and incident.culprit is None
        for incident in record.incidents
    )


def returned(pod: PodView, record: JobRecord, hosts: Iterable[HostView], lost: frozenset[str]) -> tuple[str, ...]:
    """Return the machines that an unscheduled pod keeps off because they were lost, and that are back.

    Those in `lost` are not: they are lost still, or the job has left them for another reason.
    """
    if not pod.unschedulable or pod.host or not pod.keeps_off:
        return ()
    back = lost_hosts(record).intersection(pod.keeps_off) - lost
    return tuple(sorted(host.name for host in hosts if host.name in back and host.ready is True and not host.cordoned))


def choose_exclusion(
    bad: frozenset[str], flagged: frozenset[str], hosts: Iterable[HostView] | None, role: Role, *, grouped: bool = False
) -> Exclusion:
    """Return what a new pod of a role keeps off.

    Args:
        bad: machines that were at fault in this attempt.
        flagged: machines with broken devices, which the pod would use: never allowed.
        hosts: all machines of the cluster; None where they may not be looked at. Then `bad` is a preference, because nobody
            knows whether any other machine is left.
        role: whose pod it is; machines that it could not run on anyway do not count as others.
        grouped: the pod runs on the machine of the other pods of its group, whatever is wrong with that one.
    """
    if grouped:
        return Exclusion(preferred=bad | flagged)
    if hosts is None:
        return Exclusion(required=flagged, preferred=bad - flagged)
    others = any(_is_usable(host, role) for host in hosts if host.name not in bad | flagged)
    return Exclusion(required=bad | flagged if others else flagged)


def _is_usable(host: HostView, role: Role) -> bool:
    template = template_of(role)["spec"]
    selector = {**(template.get("nodeSelector") or {}), **role.node_selector}
    tolerations = (*(template.get("tolerations") or ()), *role.tolerations)
    return (
        host.ready is True
        and not host.cordoned
        and host.name not in role.host_ignore_list
        and all(host.labels.get(key) == value for key, value in selector.items())
        and all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in host.taints)
    )


def _tolerates(toleration: Mapping[str, Any], taint: str) -> bool:
    key = toleration.get("key")
    return key == taint or (not key and toleration.get("operator") == "Exists")
