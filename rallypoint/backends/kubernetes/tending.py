"""What the holder of a job does beside its turns: it tells the coordinator where the agents are, and writes the coordinator's
status down where that may not do so itself.
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
from rallypoint.wire.roster import AgentAddress, Roster
from rallypoint.wire.status import JobStatus

__all__ = ["roster_of", "tending"]

log = logging.getLogger(__name__)

#: Seconds between two tries to reach a coordinator, between two readings of a status that it cannot write, and between two
#: looks where there is nothing to do.
_AGAIN, _READ, _IDLE = 1.0, 2.0, 30.0

#: Seconds between two looks at machines while an agent is silent.
_SUSPICIOUS = 1.5

#: Pods that are being ended whose machines one look asks about.
_ENDING = 32

#: Seconds after which a coordinator that has said nothing yet is asked itself.
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
    """Look again and again whether the machines of the coordinator and of silent agents are alive, until cancelled."""
    pause = _SUSPICIOUS
    while True:
        await asyncio.sleep(pause)
        try:
            pause = _SUSPICIOUS if await _look(tender, lost) else LOOK
        except BackendError as error:
            log.debug("cannot check the nodes: %s", error)


async def _look(tender: _Tender, lost: LostPods) -> bool:
    """Look once; return whether an agent or a machine is silent."""
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
        tender.notify()  # a pod may wait for a machine that has come back
    silent = suspects(stored.record, tender.pods(stored), known, away)
    await asyncio.gather(*(lost.look(stored.plan, pod) for pod in silent))
    return bool(silent or away)


async def _look_at_the_rest(tender: _Tender, lost: LostPods) -> bool:
    """Look at the machines of pods that are being ended; return whether one is silent, whose pods nobody there can end."""
    stored = await tender.stored()
    if stored is None or stored.record.released:
        return False
    ending = [pod for pod in tender.pods(stored) if pod.host and not pod.over]
    await asyncio.gather(*(lost.look(stored.plan, pod) for pod in ending[:_ENDING]))
    return bool(ending)


def roster_of(pods: tuple[PodView, ...], attempt: int, term: int) -> Roster:
    """Return where the agents of an attempt listen: every node that runs and has an address."""
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
        #: Which coordinator was told which agents last.
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
                        log.info("job=%s: cannot reach the coordinator of the job yet: %s", self._name, error)
                    self._complained = str(error)
                await news.wait(pause)
                if pause == _AGAIN:
                    await asyncio.sleep(_AGAIN / 4)  # news of a job that is starting come in crowds
        finally:
            self._cluster.cache.leave(self._name, news)

    async def running(self) -> Stored | None:
        """Return the job, None while it has no attempt that is created or runs."""
        stored = await self.stored()
        return stored if stored is not None and stored.record.phase in (Phase.RESUMING, Phase.RUNNING) else None

    async def stored(self) -> Stored | None:
        """Return the job, None while the watches do not tell what there is."""
        return await self._store.load(self._name) if self._cluster.fresh else None

    def notify(self) -> None:
        """Have the job looked at."""
        self._cluster.cache.tell(self._name)

    def pods(self, stored: Stored) -> tuple[PodView, ...]:
        """Return the pods of the job, as the watch told of them."""
        return self._cluster.cache.pods_of(stored.record.uid)

    async def status(self, stored: Stored) -> JobStatus | None:
        """Return what the coordinator of the current term wrote last, None before its first."""
        known = await self._store.status(stored.record)
        return known if known is not None and _of_now(known, stored) else None

    async def coordinator(self) -> tuple[Stored, PodView] | None:
        """Return the job and the pod of its coordinator, None where there is none that has not ended."""
        stored = await self.running()
        if stored is None:
            return None
        record, pods = stored.record, self.pods(stored)
        pod = next((p for p in pods if p.labels.part is Part.COORDINATOR and p.labels.incarnation == record.term), None)
        return None if pod is None or pod.over else (stored, pod)

    async def _turn(self) -> float:
        """Do what is to be done now; return after how many seconds to look again."""
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
        roster = dataclasses.replace(roster_of(pods, record.attempt, record.term), size=record.size, wish=record.wish)
        which = (pod.uid, pod.trainer.restarts if pod.trainer is not None else 0)
        if self._told != (which, roster):
            if self._told[:1] != (which,):
                self._durable = None
            await self._coordinators.tell(self._store.ref(record), stored.plan, pod, roster, sign=self._sign())
            self._told = (which, roster)
        return await self._read(stored, pod)

    async def _read(self, stored: Stored, pod: PodView) -> float:
        """Write the status down where its coordinator cannot; return when to look again."""
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
            # It can write, and has had nothing to say that is not written yet.
            self._heard_at = loop.time()
            return _READ
        if not status.durable and self._durable is None:
            log.warning("job=%s: the coordinator cannot write its status; reading it through the API server", self._name)
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
