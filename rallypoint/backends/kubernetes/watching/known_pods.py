"""Which pods of a job are read for its logs: those that its record can have. Pure.

Anybody who can create pods in the namespace can give them the labels of a job. A pod of ours has the name that its labels
imply, and an incarnation that the record has wanted.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Kind, Plan
from rallypoint.wire.status import JobStatus

__all__ = ["Chosen", "Known", "RankPlace", "every_node", "newest", "node_pods", "place_of_rank"]

#: Incarnations of a node that are read, the newest: earlier ones have ended, and their pods are gone or going.
_NEWEST = 4

Chosen = Callable[[Iterable[PodView]], list[PodView]]


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """On which node a rank was, in which attempt and round."""

    attempt: int
    round: int
    node: int

    def follows(self, before: RankPlace) -> bool:
        """Return whether the rank was nowhere else since `before`."""
        return self == before or (self.attempt == before.attempt and self.round - before.round in (0, 1))

    def may_have(self, pod: PodView) -> bool:
        """Return whether the pod can have lines of the rank that were not written before this round."""
        return pod.labels.node == self.node or pod.labels.attempt > self.attempt


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a job whose logs are followed.

    Attributes:
        chosen: returns the pods that are read.
        rank_place: of the rank that is read; None where all ranks are read, or where that is not known.
        over: it holds no resources any more.
    """

    chosen: Chosen
    rank_place: RankPlace | None = None
    over: bool = False


def every_node(pods: Iterable[PodView]) -> list[PodView]:
    """Return all pods that are nodes by their labels."""
    return [pod for pod in pods if pod.labels.part is Part.NODE]


def node_pods(pods: Iterable[PodView], *, ref: JobRef, record: JobRecord, plan: Plan) -> list[PodView]:
    """Return the pods that are nodes of a job, of each node the newest incarnations that its record knows."""
    if plan.kind is not Kind.PODS:
        return every_node(pods)  # another controller gives them their names and numbers
    slots = {slot.node: slot.incarnation for slot in (*record.retired, *record.slots)}
    size = plan.max_nodes if record.size is None else max(plan.max_nodes, record.size.max_nodes)
    size = max(size, max(slots, default=0) + 1)
    found: dict[tuple[int, int], list[PodView]] = collections.defaultdict(list)
    for pod in every_node(pods):
        its = pod.labels
        last = slots.get(its.node) if its.attempt == record.attempt else None
        known = 1 <= its.attempt <= record.attempt and its.node < size and (last is None or its.incarnation <= last)
        if known and pod.name == names.node_pod(ref, its.attempt, its.node, its.incarnation):
            found[its.attempt, its.node].append(pod)
    return [pod for group in found.values() for pod in newest(group)]


def newest(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods with the latest incarnations."""
    return sorted(pods, key=lambda pod: pod.labels.incarnation)[-_NEWEST:]


def place_of_rank(status: JobStatus | None, rank: int, *, uid: str) -> RankPlace | None:
    """Return where a rank was in the last round that a status shows."""
    if status is None or status.uid != uid:
        return None
    found = (m for m in status.world if m.first_rank >= 0 and 0 <= rank - m.first_rank < m.local_world_size)
    member = next(found, None)
    if member is None:
        return None
    return RankPlace(attempt=status.fence.attempt, round=status.fence.round, node=member.node)
