"""Which containers of a simple role are read for its logs: those of pods that a supervisor has made. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.lives import Lives, instance_of, read_lives
from rallypoint.backends.kubernetes.watching.known_pods import newest
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire.role_plans import RolePlan

__all__ = ["containers", "number_of"]


def number_of(pod: PodView, lives: Lives) -> int:
    """Return the number of the last pod of a group; 0 where none was made."""
    last = lives.pods.get(f"{pod.labels.place}-{pod.labels.node}")
    return 0 if last is None else last.number


def containers(pods: Iterable[PodView], *, ref: JobRef, role: RolePlan, lives: Lives) -> list[PodView]:
    """Return each container of a role as a pod of its own: `main` is its name.

    Of each group the newest pods are read, among those of which the supervisor has kept that it makes them.
    """
    found: dict[tuple[str, int], list[PodView]] = collections.defaultdict(list)
    for pod in pods:
        its = pod.labels
        if its.part is not Part.UNIT or its.incarnation > number_of(pod, lives):
            continue
        if pod.name == names.unit_pod(ref, its.attempt, its.place, its.node, its.incarnation):
            found[its.place, its.node].append(pod)
    return [view for group in found.values() for pod in newest(group) for view in _containers(pod, role)]


def _containers(pod: PodView, role: RolePlan) -> Iterator[PodView]:
    for name in read_lives(pod.lives):
        its, index = instance_of(name)
        if its == role.name and index < role.total and index // role.per_group == pod.labels.node:
            yield dataclasses.replace(pod, main=name, uid=f"{pod.uid}/{name}")
