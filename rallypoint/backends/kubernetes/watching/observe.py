"""What there is of a job, from what the watches told; asked of the server itself where somebody must be sure.

That something is *not* there is never believed of a cache: two watches are not equally far, so a record may speak of a pod
that the other watch has yet to tell of. And an end without a verdict is believed only once the status was read after it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.client import PAGE_VALUES, parse
from rallypoint.backends.kubernetes.exclusion import left_hosts, returned
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.store import Store, UnreadableStatusError
from rallypoint.backends.kubernetes.watching.bounded import Texts, entries
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.judging import (
    PATIENCE,
    Around,
    cannot_start,
    mounts,
    node_seen,
    out_of_reach,
    taken_by_queue,
)
from rallypoint.backends.kubernetes.watching.logs import read_tail, tail_bytes
from rallypoint.backends.kubernetes.watching.views import HostView, PodView
from rallypoint.supervision.observation import NodeSeen, Observation
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["CLEARING", "Observer", "Troubles", "trouble_in"]

#: Seconds for which a pod waits before its events are requested, seconds until the next request, and events of one request.
_FIRST, _AGAIN, _EVENTS = 10.0, 15.0, 100

_REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})


class Troubles:
    """What is known of each pod that waits."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, tuple[float, str]] = {}

    def of(self, pod: PodView) -> str:
        """Return what is known, "" for nothing."""
        return self._known.get(pod.uid, (0.0, ""))[1]

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        self._known.pop(uid, None)

    async def look(self, pod: PodView, waits: float) -> None:
        """Ask for the pod's events if it has waited, `waits` seconds by now, long enough; who may not read them knows none."""
        now = asyncio.get_running_loop().time()
        asked, _ = self._known.get(pod.uid, (float("-inf"), ""))
        if waits < _FIRST or now - asked < _AGAIN:
            return
        path = self._cluster.path("events")
        query = {"fieldSelector": f"involvedObject.uid={pod.uid}", "limit": str(_EVENTS)}
        try:
            data = await self._cluster.api.request("GET", path, query=query)
            found = await parse(data, f"GET {path}", values=PAGE_VALUES)
        except BackendError:
            found = {}
        self._known[pod.uid] = (now, trouble_in(entries(found.get("items"), _EVENTS)))


def trouble_in(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the last event that says why a pod's volumes do not come, in words; "" where none does."""
    told = (_event(event) for event in events if event.get("type") != "Normal")
    bad = [(at, reason, message) for at, reason, message in told if reason in _REASONS]
    if not bad:
        return ""
    _, reason, message = max(bad, key=operator.itemgetter(0))
    return f"{reason}: {message}"


def _event(event: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the time, the reason and the message of an event."""
    cut = Texts().cut
    at = cut(event.get("lastTimestamp")) or cut(event.get("eventTime"))
    return at, cut(event.get("reason")), cut(event.get("message")).strip()


log = logging.getLogger(__name__)

#: Phases in which everything of the job is taken away, what has ended included.
CLEARING = frozenset({Phase.RESETTING, Phase.SUSPENDING, Phase.TERMINATING})

#: Phases in which an attempt is there.
_LIVE = frozenset({Phase.RESUMING, Phase.RUNNING})

#: Lines of a node's log that are kept with its end where the plan is not known.
_TAIL = 20

#: Seconds past its grace that a pod may take to go before its machine counts as out of reach.
_STUCK = 60.0


class Losses(Protocol):
    """The pods that somebody has found lost although their objects are there."""

    @property
    def hosts(self) -> frozenset[str]:
        """The machines that are lost."""
        ...

    def reason(self, pod: PodView) -> str:
        """Return why a pod counts as lost, "" while it does not."""
        ...

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        ...


class Observer:
    """What one process remembers between two looks: for how long something has been so, on its own clock."""

    def __init__(self, cluster: Cluster, store: Store, lost: Losses) -> None:
        self._cluster, self._store, self._lost = cluster, store, lost
        self._troubles = Troubles(cluster)
        #: Since when something is so, by pod and what.
        self._since: dict[tuple[str, str], float] = {}
        self._tails: dict[str, tuple[str, ...]] = {}
        #: The ended pods of each job after which its status was read.
        self._read_after: dict[str, frozenset[str]] = {}
        self._unreadable: dict[str, str] = {}

    async def observe(self, record: JobRecord, *, now: bool = False) -> Observation:
        """Return what is there; with `now` nothing is taken from memory."""
        pods = await self._pods(record, now=now)
        gone = self._cluster.cache.gone_of(record.uid)
        plan = await self._plan(record)
        every = (*((pod, False) for pod in pods), *((pod, True) for pod in gone))
        ended = frozenset(pod.uid for pod, is_gone in every if self._seen(record, pod, gone=is_gone, plan=plan).ended)
        # Both come after the pods, and neither waits for the other: what is decided on an end should come soon.
        status, _ = await asyncio.gather(self._status(record, now=now, ended=ended), self._look_closer(record, pods, plan))
        seen = [(pod, self._seen(record, pod, gone=is_gone, plan=plan)) for pod, is_gone in every]
        nodes = tuple(s for pod, s in seen if pod.labels.part is Part.NODE)
        coordinators = tuple(s for pod, s in seen if pod.labels.part is Part.COORDINATOR)
        self._forget(record, pods, gone)
        order = sorted(nodes, key=lambda n: (n.attempt, n.node, n.incarnation))
        terms = sorted(coordinators, key=lambda c: c.incarnation)
        # Those that are gone already tell of it, too, as long as the job has not been suspended for it.
        taken = every if record.phase in _LIVE else ((pod, False) for pod in pods)
        suspend = self._preempted(record, (pod for pod, _ in taken), plan)
        return Observation(nodes=tuple(order), coordinators=tuple(terms), status=status, suspend=suspend)

    async def _pods(self, record: JobRecord, *, now: bool) -> tuple[PodView, ...]:
        ref = self._store.ref(record)
        if now or not self._cluster.fresh:
            return await self._cluster.pods_of(ref)
        pods = self._cluster.cache.pods_of(record.uid)
        if self._complete(record, pods):
            return pods
        return await self._cluster.pods_of(ref)

    def _complete(self, record: JobRecord, pods: Iterable[PodView]) -> bool:
        """Return whether every pod is known of that the record has seen and that is not known to be gone."""
        known = (*pods, *self._cluster.cache.gone_of(record.uid))
        here = {(p.labels.node, p.labels.incarnation) for p in known if p.labels.attempt == record.attempt}
        wanted = ((s.node, s.incarnation) for s in record.slots if s.seen and s.lost_clock is None)
        return record.phase not in _LIVE or here.issuperset(wanted)

    async def _plan(self, record: JobRecord) -> Plan | None:
        stored = await self._store.load(record.name)
        return stored.plan if stored is not None and stored.record.uid == record.uid else None

    # --- What a pod does not say itself

    async def _look_closer(self, record: JobRecord, pods: Iterable[PodView], plan: Plan | None) -> None:
        """Read the last words of those that ended, and the events of those whose volumes do not come."""
        lines = _TAIL if plan is None else plan.logs.log_tail
        mine = [p for p in pods if p.labels.attempt == record.attempt and p.labels.part is Part.NODE]
        for pod in mine:
            if mounts(pod):
                await self._troubles.look(pod, self._lasts(pod, "mounts"))
        wanted = {(s.node, s.incarnation) for s in record.slots}
        failed = [p for p in mine if _has_failed(p) and _slot(p) in wanted]
        dead, size = [p for p in failed if p.uid not in self._tails], tail_bytes(len(failed))
        for pod, tail in zip(dead, await asyncio.gather(*(self._tail(p, lines, size) for p in dead)), strict=True):
            self._tails[pod.uid] = tail

    async def _tail(self, pod: PodView, lines: int, size: int) -> tuple[str, ...]:
        try:
            return await read_tail(self._cluster, pod, lines, size)
        except BackendError as error:
            log.info("pod=%s: the supervisor cannot read the last log lines of the failed pod: %s", pod.name, error)
            return ()

    def _seen(self, record: JobRecord, pod: PodView, *, gone: bool, plan: Plan | None) -> NodeSeen:
        host = self._cluster.cache.host(pod.host) if pod.host else None
        keeps = record.phase not in CLEARING and pod.labels.attempt == record.attempt
        around = Around(
            stuck=self._stuck(pod),
            unreachable=self._unreachable(pod, host, plan) if not gone else 0.0,
            lost=self._lost.reason(pod),
            returned=self._returned(record, pod, plan) if pod.unschedulable else (),
            trouble=self._troubles.of(pod),
            log_tail=self._tails.get(pod.uid, ()),
            gone=gone,
            kept=keeps,
            finished=record.finished,
        )
        if host is not None:
            around = dataclasses.replace(around, host=host)
        if plan is not None:
            around = dataclasses.replace(around, fence=plan.rendezvous.fence_timeout, group=plan.node_group)
        return node_seen(pod, around)

    def _returned(self, record: JobRecord, pod: PodView, plan: Plan | None) -> tuple[str, ...]:
        hosts = tuple(self._cluster.cache.hosts)
        return returned(pod, record, hosts, self._lost.hosts | left_hosts(record, plan, hosts))

    def _stuck(self, pod: PodView) -> float:
        """Return for how many seconds a pod cannot start."""
        if cannot_start(pod):
            return self._lasts(pod, "cannot-start")
        self._since.pop((pod.uid, "cannot-start"), None)
        return self._lasts(pod, "mounts") if mounts(pod) else 0.0

    def _unreachable(self, pod: PodView, host: HostView | None, plan: Plan | None) -> float:
        """Return for how many seconds nobody has heard of a pod's machine; 0 where somebody has."""
        grace = _STUCK + (0.0 if plan is None else plan.workers.stop_grace + plan.workers.stop_grace)
        late = pod.deleting and not pod.over and self._lasts(pod, "deleting") > grace
        if late or (host is not None and out_of_reach(pod, host)) or pod.phase == "Unknown":
            return max(self._lasts(pod, "unreachable"), 1e-3)
        self._since.pop((pod.uid, "unreachable"), None)
        return 0.0

    def _lasts(self, pod: PodView, what: str) -> float:
        loop = asyncio.get_running_loop()
        key = (pod.uid, what)
        if key not in self._since:
            self._since[key] = loop.time()
            # Nothing else may happen until then, and it is to be judged at once.
            loop.call_later(PATIENCE + 0.5, self._cluster.cache.tell, pod.labels.job)
        return loop.time() - self._since[key]

    def _preempted(self, record: JobRecord, pods: Iterable[PodView], plan: Plan | None) -> bool:
        """Return whether a queue takes away the quota of the job's base group: its coordinator and its first nodes."""
        base = 0 if plan is None else plan.min_nodes
        return any(taken_by_queue(p) and p.labels.attempt == record.attempt and p.labels.node < base for p in pods)

    # --- The status

    async def _status(self, record: JobRecord, *, now: bool, ended: frozenset[str]) -> JobStatus | None:
        # The verdict is durable before an agent ends, so it is there by now; the watch may not have told of it yet.
        fresh = now or not ended.issubset(self._read_after.get(record.uid, frozenset()))
        try:
            status = await self._store.status(record, now=fresh)
        except UnreadableStatusError as error:
            if self._unreadable.get(record.name) != str(error):
                self._unreadable[record.name] = str(error)
                log.warning(
                    "job=%s: the supervisor cannot read the job status (%s); it continues without the status",
                    record.name,
                    error,
                )
            return None
        self._unreadable.pop(record.name, None)
        if fresh:
            self._read_after[record.uid] = ended
        return status

    def _forget(self, record: JobRecord, pods: tuple[PodView, ...], gone: tuple[PodView, ...]) -> None:
        """Keep no memory of pods that no decision can be about any more."""
        wanted = {(s.node, s.incarnation) for s in record.slots}
        wanted.add((-1, record.term))  # of coordinators, and of nothing else that has no number
        past = [p for p in gone if p.labels.attempt != record.attempt or _slot(p) not in wanted]
        self._cluster.cache.forget_gone(record.uid, (p.uid for p in past))
        for pod in past:
            self.forget(pod.uid)
        if record.released and not pods:
            self._read_after.pop(record.uid, None)

    def forget(self, uid: str) -> None:
        """Forget all that was remembered of a pod."""
        self._tails.pop(uid, None)
        self._troubles.forget(uid)
        self._lost.forget(uid)
        for what in ("cannot-start", "mounts", "deleting", "unreachable"):
            self._since.pop((uid, what), None)


def _slot(pod: PodView) -> tuple[int, int]:
    return pod.labels.node, pod.labels.incarnation


def _has_failed(pod: PodView) -> bool:
    seen = node_seen(pod, Around())
    return seen.ended and seen.kind is not FaultKind.START_FAILED and seen.exit_code not in (None, 0)
