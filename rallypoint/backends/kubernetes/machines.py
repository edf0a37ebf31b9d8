"""Whether the machine of a pod is alive: its kubelet's own Lease, and the answer of the pod through the API server.

Kubernetes calls a machine not ready after 40 seconds and more. Its kubelet renews a Lease in the namespace `kube-node-lease`
every 10 seconds, so a renewal that is overdue is known much earlier. Two facts together say that a coordinator is lost: its
machine's renewal is overdue (or Kubernetes calls the machine unreachable), and the coordinator does not answer. One alone
says nothing: a busy kubelet renews late, and a route to one pod may be cut while its machine lives. A node is lost when its
coordinator does not hear its agent, either.

What is judged lost may live on. That is no danger: the successor of a coordinator has a higher term, and the status decides
which of the two may close a round (`supervision/running.py`). A node's successor reports that nobody saw the end of the one
before, and a world without any member of the last one waits for the fence (`agent/rendezvous/last_world.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.backends.kubernetes.client import parse
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView, Running
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["LOOK", "OVERDUE", "LostPods", "MachineLease", "Machines", "heard", "runs", "suspects"]

log = logging.getLogger(__name__)

#: Seconds between two readings of a machine's Lease.
LOOK = 5.0

#: Nodes that one look asks about: after the loss of many machines the others follow in the next one.
_AT_ONCE = 32

#: Seconds without a renewal after which one is overdue: kubelets renew every 10 seconds.
OVERDUE = 12.0

#: The reason of the condition of pods that are deleted because their machine is not ready or unreachable.
_EVICTED = "DeletionByTaintManager"

#: A Lease that is overdue is read once more after so many seconds, in case the clocks of kubelet and API server differ.
_CONFIRM = 4.0


@dataclass(frozen=True, kw_only=True)
class MachineLease:
    """What is known of one machine's Lease.

    Attributes:
        version: its resourceVersion when it was read last.
        since: when this version was read first, on this process's clock.
        renewed_at: its last renewal, by the kubelet's clock, in seconds since the epoch; 0 where it does not say.
    """

    version: str
    since: float
    renewed_at: float

    def read(self, version: str, renewed_at: float, now: float) -> MachineLease:
        """Return what is known after another reading, at `now` on this process's clock."""
        if version == self.version:
            return self
        return MachineLease(version=version, since=now, renewed_at=renewed_at)

    def overdue(self, *, now: float, server_time: float) -> float:
        """Return for how many seconds there was no renewal where one is overdue, 0 where none is.

        `now` is this process's clock, `server_time` the API server's. A kubelet's clock may be wrong, so its time alone decides
        nothing: the Lease must also have stood still between two readings.
        """
        still = now - self.since
        age = max(still, server_time - self.renewed_at) if self.renewed_at else still
        return age if age >= OVERDUE and still >= _CONFIRM else 0.0


class Machines:
    """The Leases of the machines that somebody asked about; one object serves all jobs of an event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leases: dict[str, MachineLease] = {}
        self._read_at: dict[str, float] = {}
        self._reading = asyncio.Lock()
        self._refused = False

    async def overdue(self, name: str) -> float:
        """Return for how many seconds a machine's kubelet has not renewed its Lease, 0 while it does and where nobody knows.

        Raises `BackendError` where the API server does not answer: then nothing is known of anybody.
        """
        host = self._cluster.cache.host(name)
        if self._refused:
            return OVERDUE if host is not None and host.ready is None else 0.0
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() - self._read_at.get(name, float("-inf")) >= LOOK / 2:
                await self._read(name)
        known = self._leases.get(name)
        return 0.0 if known is None else known.overdue(now=loop.time(), server_time=await self._cluster.time())

    async def _read(self, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        now = asyncio.get_running_loop().time()
        try:
            found = parse(await self._cluster.api.request("GET", path), f"GET {path}")
        except ApiError as error:
            if error.status == 403:
                self._refused = True
                log.warning(
                    "no permission to read node Leases, so lost nodes are detected later (%s); `rallypoint "
                    "manifests rbac --nodes` prints the required ClusterRole",
                    error.said,
                )
            elif error.status != 404:
                raise
            self._leases.pop(name, None)
            return
        self._read_at[name] = now
        version = str(found["metadata"].get("resourceVersion") or "")
        renewed_at = parse_time(str((found.get("spec") or {}).get("renewTime") or ""))
        fresh = MachineLease(version=version, since=now, renewed_at=renewed_at)
        known = self._leases.get(name)
        self._leases[name] = fresh if known is None else known.read(version, renewed_at, now)


class LostPods:
    """The pods that this process has found lost although their objects are there, by their uid."""

    def __init__(self, cluster: Cluster, machines: Machines, coordinators: Coordinators) -> None:
        self._cluster, self._machines, self._coordinators = cluster, machines, coordinators
        self._reasons: dict[str, str] = {}
        self._hosts: set[str] = set()

    async def machines(self) -> frozenset[str]:
        """Return the machines that were found lost with a pod and have not come back; raises `BackendError`."""
        for host in sorted(self._hosts):
            if not await self._machines.overdue(host):
                self._hosts.discard(host)
        return frozenset(self._hosts)

    @property
    def hosts(self) -> frozenset[str]:
        """The machines that had not come back when they were looked at last."""
        return frozenset(self._hosts)

    def reason(self, pod: PodView) -> str:
        """Return why a pod counts as lost, "" while it does not."""
        return self._reasons.get(pod.uid, "")

    def forget(self, uid: str) -> None:
        """Forget a pod that is replaced."""
        self._reasons.pop(uid, None)

    async def look(self, plan: Plan, pod: PodView) -> None:
        """Look at a pod, and have its job looked at where it turns out to be lost.

        A pod that does not run yet is left where it is while its machine may come back and no other one is there.

        Raises `BackendError` where the API server does not answer.
        """
        if pod.uid in self._reasons or not pod.host or (not runs(pod) and not self._may_go(pod.host)):
            return
        overdue = await self._machines.overdue(pod.host)
        evicted = pod.deleting and pod.target == _EVICTED
        if not (overdue or evicted) or (pod.ip and await self._coordinators.answers(plan, pod)):
            return
        what = "the coordinator" if pod.labels.part is Part.COORDINATOR else f"the agent of node {pod.labels.node}"
        since = f"has not renewed its Lease for {overdue:.0f} s" if overdue else "sends no reports, and its pods were evicted"
        reason = f"machine {pod.host} {since}, and {what} on it does not answer"
        log.warning("job %s: %s", pod.labels.job, reason)
        self._reasons[pod.uid] = reason
        self._hosts.add(pod.host)
        self._cluster.cache.tell(pod.labels.job)

    def _may_go(self, host: str) -> bool:
        hosts = tuple(self._cluster.cache.hosts)
        lost = next((found.ready is None for found in hosts if found.name == host), False)
        others = (found for found in hosts if found.name not in self._hosts | {host})
        return lost or any(found.ready is True and not found.cordoned for found in others)


def runs(pod: PodView) -> bool:
    """Return whether the pod's own container runs, as far as its machine has reported."""
    return not pod.over and pod.trainer is not None and isinstance(pod.trainer.state, Running)


def heard(status: JobStatus | None) -> frozenset[tuple[int, int]]:
    """Return the nodes, with their incarnations, that a coordinator hears by its own status, None before its first. Pure."""
    if status is None:
        return frozenset()
    here = {(member.node, member.incarnation) for member in (*status.world, *status.waiting)}
    return frozenset(here - {(one.node, one.incarnation) for one in status.missing})


def suspects(
    record: JobRecord, pods: Iterable[PodView], known: frozenset[tuple[int, int]] | None, lost: frozenset[str]
) -> tuple[PodView, ...]:
    """Return the pods of wanted nodes whose machines must be looked at. Pure.

    Those are the nodes that are not in `known`, which the coordinator hears; None where there is no coordinator that lives:
    then it is the nodes on the machines in `lost`, since no others are known to be silent.
    """
    wanted = {(slot.node, slot.incarnation) for slot in record.slots if slot.lost_clock is None}
    found = (
        pod
        for pod in pods
        if pod.labels.part is Part.NODE
        and pod.labels.attempt == record.attempt
        and (pod.labels.node, pod.labels.incarnation) in wanted - (known or frozenset())
        and pod.host
        and not pod.over
        and (known is not None or pod.host in lost)
    )
    return tuple(sorted(found, key=lambda pod: (pod.labels.node, pod.labels.incarnation))[:_AT_ONCE])
