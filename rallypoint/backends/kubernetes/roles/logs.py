"""The logs of the instances of simple roles: each is a container, and its whole log is that of the instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.lives import instance_of, read_lives
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.logs import Listener
from rallypoint.backends.kubernetes.watching.views import PodView

__all__ = ["UnitLogReader"]

#: Lives of an instance between two resets of its role, at most.
_LIVES = 1_000_000


class UnitLogReader(LogReader):
    """The logs of one simple role; the ranks are the indices of its instances.

    A container that the kubelet has restarted continues the log of the earlier one, of which the kubelet keeps only the last.
    """

    def __init__(self, cluster: Cluster, job: JobRef, role: str, *, rank: int | None, cursor: str) -> None:
        super().__init__(cluster, job, rank=rank, cursor=cursor)
        self._role = role

    async def _pods(self) -> list[PodView]:
        """Return each container of the role as a pod of its own: `main` is its name."""
        found = [view for pod in await self._every() for view in self._containers(pod)]
        return sorted(found, key=lambda pod: (pod.labels.attempt, pod.labels.node, pod.labels.incarnation, pod.main))

    def _containers(self, pod: PodView) -> Iterator[PodView]:
        if pod.labels.part is not Part.UNIT:
            return
        for name in read_lives(pod.lives):
            role, index = instance_of(name)
            if role == self._role and self._rank in (None, index):
                yield dataclasses.replace(pod, main=name, uid=f"{pod.uid}/{name}")

    def _listener(self, pod: PodView) -> Listener:
        life, (_, index) = read_lives(pod.lives)[pod.main], instance_of(pod.main)
        return Listener(pod.labels.attempt, alone=index, round=life.reset * _LIVES + life.incarnation)

    def _logs_of(self, pod: PodView) -> Iterable[Mapping[str, str]]:
        restarted = pod.trainer is not None and pod.trainer.restarts > 0
        return ({"previous": "true"}, {}) if restarted else ({},)
