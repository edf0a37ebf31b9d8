"""Detect lost machines of pods, by the Lease of the kubelet and the reply of the pod through the API server.

Kubernetes marks a machine as not ready after 40 seconds or more. Its kubelet renews a Lease in the namespace `kube-node-lease`
every 10 seconds, so an overdue renewal is visible much earlier. A coordinator is lost if both conditions hold: the renewal of
its machine is overdue (or the machine is marked as unreachable), and the coordinator does not answer. One condition alone is
no proof: a busy kubelet renews late, and the route to one pod may fail while its machine runs. A node is lost if, in addition,
the coordinator receives no report of its agent.

A process that is judged lost may still run. This is safe: the successor of a coordinator has a higher term, and the status
decides which of the two may close a round (`supervision/running.py`). A node's successor reports that the end of its
predecessor was not observed, and a world without a member of the last one waits for the fence timeout
(`agent/rendezvous/last_world.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rallypoint.backends.contract import BackendError, PlaceClock
from rallypoint.backends.kubernetes.client import parse
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView, Running
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = [
    "LOOK",
    "OVERDUE",
    "LostPods",
    "MachineLease",
    "Machines",
    "clocks_of",
    "heard",
    "loss_clocks",
    "runs",
    "silent_pods",
    "suspects",
]

log = logging.getLogger(__name__)

#: Seconds between two readings of a machine's Lease.
LOOK = 5.0

#: Number of nodes per check: after the loss of many machines, the next checks cover the others.
_AT_ONCE = 32

#: Seconds after which a renewal is overdue: kubelets renew every 10 seconds.
OVERDUE = 12.0

#: Reason in the condition of pods that are deleted because their machine is not ready or unreachable.
_EVICTED = "DeletionByTaintManager"

#: Seconds until an overdue Lease is read again, in case the clocks of kubelet and API server differ.
_CONFIRM = 4.0

#: Seconds without a renewal from which on the machine of a pod that is being ended is silent: kubelets renew every 10 seconds.
_RENEWAL = 10.5


@dataclass(frozen=True, kw_only=True)
class MachineLease:
    """Observed Lease of one machine.

    Attributes:
        version: resourceVersion at the last reading.
        since: time of the first reading of this version, on this process's clock.
        renewed_at: last renewal by the kubelet's clock, in seconds since the epoch; 0 if unknown.
    """

    version: str
    since: float
    renewed_at: float

    def read(self, version: str, renewed_at: float, now: float) -> MachineLease:
        """Return the state after another reading, at `now` on this process's clock."""
        if version == self.version:
            return self
        return MachineLease(version=version, since=now, renewed_at=renewed_at)

    def overdue(self, *, now: float, server_time: float) -> float:
        """Return the seconds since the last renewal if it is overdue, else 0.

        `now` is this process's clock, `server_time` the API server's. A kubelet's clock may be wrong, so its time alone is not
        sufficient: the Lease must also be unchanged between two readings.
        """
        still = now - self.since
        age = max(still, server_time - self.renewed_at) if self.renewed_at else still
        return age if age >= OVERDUE and still >= _CONFIRM else 0.0


class Machines:
    """Cache of the Leases of machines; one object serves all jobs of an event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leases: dict[str, MachineLease] = {}
        self._read_at: dict[str, float] = {}
        self._reading = asyncio.Lock()
        self._refused = False

    async def overdue(self, name: str) -> float:
        """Return the seconds since a kubelet's last Lease renewal if it is overdue; 0 if it is not, or unknown.

        Raises `BackendError` if the API server does not answer.
        """
        host = self._cluster.cache.host(name)
        if self._refused:
            return OVERDUE if host is not None and host.ready is None else 0.0
        known = await self._known(name)
        now = asyncio.get_running_loop().time()
        return 0.0 if known is None else known.overdue(now=now, server_time=await self._cluster.time())

    async def age(self, name: str) -> float | None:
        """Return the seconds since a machine's kubelet renewed its Lease, by the two clocks together; None where unknown.

        Raises `BackendError` where the API server does not answer.
        """
        known = await self._known(name)
        return None if known is None or not known.renewed_at else max(0.0, await self._cluster.time() - known.renewed_at)

    async def _known(self, name: str) -> MachineLease | None:
        loop = asyncio.get_running_loop()
        async with self._reading:
            if not self._refused and loop.time() - self._read_at.get(name, float("-inf")) >= LOOK / 2:
                await self._read(name)
        return self._leases.get(name)

    async def _read(self, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        now = asyncio.get_running_loop().time()
        try:
            found = await parse(await self._cluster.api.request("GET", path), f"GET {path}")
        except ApiError as error:
            if error.status == 403:
                self._refused, reason = True, error.said
                log.warning(
                    "the supervisor has no permission to read the Leases of Kubernetes nodes (%s), so it detects lost "
                    "Kubernetes nodes later; `rallypoint manifests rbac --nodes` prints the required ClusterRole",
                    reason,
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
    """Pods that this process has judged lost although their objects exist, by uid."""

    def __init__(self, cluster: Cluster, machines: Machines, coordinators: Coordinators) -> None:
        self._cluster, self._machines, self._coordinators = cluster, machines, coordinators
        self._reasons: dict[str, str] = {}
        self._hosts: set[str] = set()

    async def machines(self) -> frozenset[str]:
        """Return the machines that were judged lost with a pod and have not recovered; raises `BackendError`."""
        for host in sorted(self._hosts):
            if not await self._machines.overdue(host):
                self._hosts.discard(host)
        return frozenset(self._hosts)

    @property
    def hosts(self) -> frozenset[str]:
        """The machines that had not recovered at the last check."""
        return frozenset(self._hosts)

    def reason(self, pod: PodView) -> str:
        """Return the reason why a pod counts as lost, or ""."""
        return self._reasons.get(pod.uid, "")

    def forget(self, uid: str) -> None:
        """Drop a pod that was replaced."""
        self._reasons.pop(uid, None)

    async def look(self, plan: Plan, pod: PodView) -> None:
        """Check a pod, and notify the supervisor of its job if the pod is lost.

        A pod that does not run yet stays while its machine may recover and no other machine exists.

        Raises `BackendError` if the API server does not answer.
        """
        if pod.uid in self._reasons or not pod.host or (not runs(pod) and not self._may_go(pod.host)):
            return
        overdue = await self._machines.overdue(pod.host)
        evicted = pod.deleting and pod.target == _EVICTED
        if not (overdue or evicted) or (pod.ip and await self._coordinators.answers(plan, pod)):
            return
        what = "the coordinator" if pod.labels.part is Part.COORDINATOR else f"the agent of node {pod.labels.node}"
        since = f"has not renewed its Lease for {overdue:.0f} s" if overdue else "sends no reports, and its pods were evicted"
        reason = f"Kubernetes node {pod.host} {since}, and {what} on it does not respond"
        log.warning("job=%s: %s", pod.labels.job, reason)
        self._reasons[pod.uid] = reason
        self._hosts.add(pod.host)
        self._cluster.cache.tell(pod.labels.job)

    def _may_go(self, host: str) -> bool:
        hosts = tuple(self._cluster.cache.hosts)
        lost = next((found.ready is None for found in hosts if found.name == host), False)
        others = (found for found in hosts if found.name not in self._hosts | {host})
        return lost or any(found.ready is True and not found.cordoned for found in others)


def runs(pod: PodView) -> bool:
    """Return whether the pod's main container runs, according to the last report of its machine."""
    return not pod.over and pod.trainer is not None and isinstance(pod.trainer.state, Running)


def heard(status: JobStatus | None) -> frozenset[tuple[int, int]]:
    """Return nodes and incarnations that report to the coordinator, by its status; None before its first status. Pure."""
    if status is None:
        return frozenset()
    here = {(member.node, member.incarnation) for member in (*status.world, *status.waiting)}
    return frozenset(here - {(one.node, one.incarnation) for one in status.missing})


def suspects(
    record: JobRecord, pods: Iterable[PodView], known: frozenset[tuple[int, int]] | None, lost: frozenset[str]
) -> tuple[PodView, ...]:
    """Return the pods of wanted nodes whose machines must be checked. Pure.

    These are the nodes that are not in `known`, the nodes that report to the coordinator. If `known` is None (no coordinator
    runs), these are the nodes on the machines in `lost`, because only these are known to be silent.
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


async def loss_clocks(
    machines: Machines, record: JobRecord, pods: Iterable[PodView], status: JobStatus | None, *, silent: bool
) -> tuple[PlaceClock, ...]:
    """Return the `lost-machine` clocks that run; none where the Leases of machines cannot be read.

    Args:
        machines: read the Leases.
        record: of the job.
        pods: of the job.
        status: the coordinator's last word.
        silent: the coordinator did not answer when it was asked.
    """
    suspicious = silent_pods(record, tuple(pods), status, silent=silent)
    try:
        ages = {pod.host: await machines.age(pod.host) for pod in suspicious}
    except BackendError:
        return ()
    return tuple(clocks_of(record, suspicious, ages))


def silent_pods(record: JobRecord, pods: tuple[PodView, ...], status: JobStatus | None, *, silent: bool) -> tuple[PodView, ...]:
    """Return the pods of which nothing is heard, or that are being ended. Pure."""
    if record.phase not in (Phase.RESUMING, Phase.RUNNING):
        return tuple(pod for pod in pods if pod.host and not pod.over and not record.released)
    coordinators = (pod for pod in pods if pod.labels.part is Part.COORDINATOR and pod.labels.incarnation == record.term)
    coordinator = next((pod for pod in coordinators if pod.host and not pod.over), None)
    if coordinator is None:
        return ()
    if silent:
        return coordinator, *suspects(record, pods, None, frozenset({coordinator.host}))
    current = status is not None and (status.fence.attempt, status.fence.term) == (record.attempt, record.term)
    return suspects(record, pods, heard(status), frozenset()) if current else ()


def clocks_of(record: JobRecord, pods: Iterable[PodView], ages: dict[str, float | None]) -> Iterator[PlaceClock]:
    """Yield the clock of each silent pod, by the age of its machine's Lease in seconds. Pure."""
    ending = record.phase not in (Phase.RESUMING, Phase.RUNNING)
    for pod in pods:
        age = ages.get(pod.host)
        if age is None or (ending and age < _RENEWAL):
            continue
        unless = f"unless machine {pod.host} renews its Lease or the pod answers"
        if ending:
            then = f"pod {pod.name} is deleted with force"
        elif pod.labels.part is Part.COORDINATOR:
            then = "the coordinator is lost and the next one starts"
        else:
            then = f"node {pod.labels.node} is lost and is replaced"
        yield PlaceClock(clock="lost-machine", within=max(0.0, OVERDUE - age), then=f"{then}, {unless}")
