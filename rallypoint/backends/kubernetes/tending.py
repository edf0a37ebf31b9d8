"""Background tasks of a supervisor: send the list of agents to the coordinator, and store the coordinator's status if the
coordinator has no permission to write it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator

from rallypoint.backends.contract import BackendError, Stored
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.machines import LOOK, LostPods, heard, runs, suspects
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.supervision.record import Phase
from rallypoint.wire.roster import AgentAddress, LostNode, Roster
from rallypoint.wire.status import JobStatus

__all__ = ["roster_of", "tending"]

log = logging.getLogger(__name__)

#: Seconds between two tries to reach a coordinator, between two readings of a status that it cannot write, and between two
#: looks where there is nothing to do.
_AGAIN, _READ, _IDLE = 1.0, 2.0, 30.0

#: Seconds between two checks of machines while an agent is silent.
_SUSPICIOUS = 1.5

#: Number of terminating pods per check of their machines.
_ENDING = 32

#: Seconds after which the status is requested from a coordinator that has published none.
_SILENT = 5.0


@contextlib.asynccontextmanager
async def tending(
    cluster: Cluster, store: Store, coordinators: Coordinators, lost: LostPods, name: str, me: str
) -> AsyncIterator[None]:
    """Tend a job as the supervisor `me` while the context lasts."""
    tender = _Tender(cluster, store, coordinators, name, me)
    tasks = [
        asyncio.create_task(tender.run(), name=f"tend {name}"),
        asyncio.create_task(_look_after(tender, lost), name=f"look after the machines of {name}"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _look_after(tender: _Tender, lost: LostPods) -> None:
    """Check the machines of the coordinator and of silent agents periodically, until cancelled."""
    pause = _SUSPICIOUS
    while True:
        await asyncio.sleep(pause)
        try:
            pause = _SUSPICIOUS if await _look(tender, lost) else LOOK
        except BackendError as error:
            log.debug(
                "the supervisor cannot check whether Kubernetes nodes of the job are lost: %s; retrying in %g s", error, pause
            )


async def _look(tender: _Tender, lost: LostPods) -> bool:
    """Check once; return whether an agent or a machine is silent."""
    stored = await tender.running()
    if stored is None:
        return await _look_at_the_rest(tender, lost)
    found = await tender.coordinator()
    if found is not None:
        await lost.look(stored.plan, found[1])
    lives = found is not None and runs(found[1]) and not lost.reason(found[1])
    known = heard(await tender.status(stored)) if lives else None
    before = lost.hosts
    away = await lost.machines()
    if before - away:
        tender.notify()  # a pod may wait for a machine that has recovered
    silent = suspects(stored.record, tender.pods(stored), known, away)
    await asyncio.gather(*(lost.look(stored.plan, pod) for pod in silent))
    return bool(silent or away)


async def _look_at_the_rest(tender: _Tender, lost: LostPods) -> bool:
    """Check the machines of terminating pods; return whether one is silent, so that its kubelet cannot end them."""
    stored = await tender.stored()
    if stored is None or stored.record.released:
        return False
    ending = [pod for pod in tender.pods(stored) if pod.host and not pod.over]
    await asyncio.gather(*(lost.look(stored.plan, pod) for pod in ending[:_ENDING]))
    return bool(ending)


def roster_of(pods: tuple[PodView, ...], attempt: int, term: int) -> Roster:
    """Return the addresses of the agents of an attempt: every running node with an address."""
    agents = sorted(
        AgentAddress(node=p.labels.node, incarnation=p.labels.incarnation, host=p.ip)
        for p in pods
        if p.labels.part is Part.NODE and p.labels.attempt == attempt and p.ip and runs(p)
    )
    return Roster(attempt=attempt, term=term, agents=tuple(agents))


class _Tender:
    def __init__(self, cluster: Cluster, store: Store, coordinators: Coordinators, name: str, me: str) -> None:
        self._cluster, self._store, self._coordinators = cluster, store, coordinators
        self._name, self._me = name, me
        #: Last list of agents sent to each coordinator.
        self._told: tuple[object, ...] = ()
        self._signs = 0
        self._heard_at = float("-inf")
        self._durable: bool | None = None
        self._complained = ""

    async def run(self) -> None:
        """Tend the job until cancelled."""
        news = self._cluster.cache.follow(self._name)
        try:
            while True:
                try:
                    pause = await self._turn()
                    self._complained = ""
                except BackendError as error:
                    pause = _AGAIN
                    if self._complained != str(error):
                        log.info(
                            "job=%s: the supervisor cannot reach the coordinator of the job: %s; retrying in %g s",
                            self._name,
                            error,
                            _AGAIN,
                        )
                    self._complained = str(error)
                await news.wait(pause)
                if pause == _AGAIN:
                    await asyncio.sleep(_AGAIN / 4)  # many events arrive while a job starts
        finally:
            self._cluster.cache.leave(self._name, news)

    async def running(self) -> Stored | None:
        """Return the job, or None without a created or running attempt."""
        stored = await self.stored()
        return stored if stored is not None and stored.record.phase in (Phase.RESUMING, Phase.RUNNING) else None

    async def stored(self) -> Stored | None:
        """Return the job, or None while the watches are not connected."""
        return await self._store.load(self._name) if self._cluster.fresh else None

    def notify(self) -> None:
        """Notify the supervision loop of the job."""
        self._cluster.cache.tell(self._name)

    def pods(self, stored: Stored) -> tuple[PodView, ...]:
        """Return the pods of the job from the watch."""
        return self._cluster.cache.pods_of(stored.record.uid)

    async def status(self, stored: Stored) -> JobStatus | None:
        """Return the last status of the coordinator of the current term, or None before its first."""
        known = await self._store.status(stored.record)
        return known if known is not None and _of_now(known, stored) else None

    async def coordinator(self) -> tuple[Stored, PodView] | None:
        """Return the job and the pod of its coordinator, or None without a live coordinator."""
        stored = await self.running()
        if stored is None:
            return None
        record, pods = stored.record, self.pods(stored)
        pod = next((p for p in pods if p.labels.part is Part.COORDINATOR and p.labels.incarnation == record.term), None)
        return None if pod is None or pod.over else (stored, pod)

    async def _turn(self) -> float:
        """Do the pending work; return the seconds until the next check."""
        if not self._cluster.fresh:
            # The watches are not connected yet, and nothing tells when they are: an agent may be waiting for its coordinator.
            return _READ
        found = await self.coordinator()
        if found is None:
            return _IDLE
        stored, pod = found
        if pod.deleting or not pod.ip or not runs(pod):
            return _IDLE
        record, pods = stored.record, self._cluster.cache.pods_of(stored.record.uid)
        roster = dataclasses.replace(
            roster_of(pods, record.attempt, record.term),
            size=record.size,
            wish=record.wish,
            lost=tuple(LostNode(node=slot.node, incarnation=slot.unseen) for slot in record.slots if slot.unseen),
        )
        which = (pod.uid, pod.trainer.restarts if pod.trainer is not None else 0)
        if self._told != (which, roster):
            if self._told[:1] != (which,):
                self._durable = None
            await self._coordinators.tell(self._store.ref(record), stored.plan, pod, roster, sign=self._sign())
            self._told = (which, roster)
        return await self._read(stored, pod)

    async def _read(self, stored: Stored, pod: PodView) -> float:
        """Store the status if its coordinator cannot; return the time of the next check."""
        loop, record = asyncio.get_running_loop(), stored.record
        if self._durable:
            return _IDLE
        known = await self._store.status(record)
        if self._durable is None:
            if known is not None and known.durable and _of_now(known, stored):
                self._durable = True
                return _IDLE
            if self._heard_at == float("-inf"):
                self._heard_at = loop.time()
            if loop.time() - self._heard_at < _SILENT:
                return _READ
        status = await self._coordinators.status(self._store.ref(record), stored.plan, pod, sign=self._sign())
        if status.durable and self._durable is None:
            # The coordinator can write, and its last status is stored.
            self._heard_at = loop.time()
            return _READ
        if not status.durable and self._durable is None:
            log.warning(
                "job=%s: the coordinator cannot write the job status to its ConfigMap; the supervisor requests the status "
                "directly from the coordinator",
                self._name,
            )
        self._durable = False
        if status != known and status.uid == record.uid and not (known is not None and known.fence > status.fence):
            await self._store.tell_status(record, status)
        return _READ

    def _sign(self) -> str:
        self._signs += 1
        return f"{self._me}:{self._signs}"


def _of_now(status: JobStatus, stored: Stored) -> bool:
    record = stored.record
    return status.uid == record.uid and (status.fence.attempt, status.fence.term) == (record.attempt, record.term)
