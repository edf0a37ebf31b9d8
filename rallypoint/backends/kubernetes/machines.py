"""Whether the machine of a coordinator is alive: its kubelet's own Lease, and the coordinator's answer through the API server.

Kubernetes calls a machine not ready after 40 seconds and more. Its kubelet renews a Lease in the namespace `kube-node-lease`
every 10 seconds, so a renewal that is overdue is known much earlier. Two facts together say that a coordinator is lost: its
machine's renewal is overdue (or Kubernetes calls the machine unreachable), and the coordinator does not answer. One alone
says nothing: a busy kubelet renews late, and a route to one pod may be cut while its machine lives.

A coordinator that is judged lost may live on. That is no danger: a successor has a higher term, and the status decides which of
the two may close a round (`supervision/running.py`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from rallypoint.backends.kubernetes.client import parse
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire.plan import Plan

__all__ = ["LOOK", "OVERDUE", "LostCoordinators", "MachineLease", "Machines"]

log = logging.getLogger(__name__)

#: Seconds between two readings of a machine's Lease.
LOOK = 5.0

#: Seconds without a renewal after which one is overdue: kubelets renew every 10 seconds.
OVERDUE = 12.0

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
                    "the supervisor may not read the Leases of machines, so a lost machine is noticed later (%s); "
                    "`rallypoint manifests rbac --nodes` prints the Role that is needed",
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


class LostCoordinators:
    """The coordinators that this process has found lost, by the uid of their pods."""

    def __init__(self, cluster: Cluster, machines: Machines, coordinators: Coordinators) -> None:
        self._cluster, self._machines, self._coordinators = cluster, machines, coordinators
        self._reasons: dict[str, str] = {}
        self._hosts: set[str] = set()

    async def machines(self) -> frozenset[str]:
        """Return the machines that were found lost with a coordinator and have not come back; raises `BackendError`."""
        for host in sorted(self._hosts):
            if not await self._machines.overdue(host):
                self._hosts.discard(host)
        return frozenset(self._hosts)

    def reason(self, pod: PodView) -> str:
        """Return why a coordinator counts as lost, "" while it does not."""
        return self._reasons.get(pod.uid, "")

    def forget(self, uid: str) -> None:
        """Forget a coordinator that is replaced."""
        self._reasons.pop(uid, None)

    async def look(self, plan: Plan, pod: PodView) -> None:
        """Look at the coordinator in `pod`, and have its job looked at where it turns out to be lost.

        Raises `BackendError` where the API server does not answer.
        """
        if pod.uid in self._reasons or not pod.host:
            return
        overdue = await self._machines.overdue(pod.host)
        if not overdue or await self._coordinators.answers(plan, pod):
            return
        reason = f"machine {pod.host} has not renewed its lease for {overdue:.0f} s, and the coordinator on it does not answer"
        log.warning("job %s: %s", pod.labels.job, reason)
        self._reasons[pod.uid] = reason
        self._hosts.add(pod.host)
        self._cluster.cache.tell(pod.labels.job)
