"""The Kubernetes backend: each method is a few words to those who do it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from rallypoint.backends.certificates import renewing
from rallypoint.backends.contract import (
    Backend,
    BackendError,
    Blueprint,
    Changes,
    JobExistsError,
    JobNotFoundError,
    LogLine,
    PlaceClock,
    Pulse,
    ResizeError,
    Stored,
    SubmitError,
    Tail,
    UnitBackend,
)
from rallypoint.backends.cursors import rank_limit
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.act import Actor
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.coordinators import Coordinators
from rallypoint.backends.kubernetes.dryrun import check
from rallypoint.backends.kubernetes.heartbeat import BEAT, read_pulse
from rallypoint.backends.kubernetes.hold import Holds
from rallypoint.backends.kubernetes.lease import SILENT
from rallypoint.backends.kubernetes.leftovers import remove_network_policy
from rallypoint.backends.kubernetes.machines import LostPods, Machines, loss_clocks
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, draw_one
from rallypoint.backends.kubernetes.manifests.kueue import queue_of
from rallypoint.backends.kubernetes.manifests.parts import role_of
from rallypoint.backends.kubernetes.names import job_configmap
from rallypoint.backends.kubernetes.roles.blueprint import draw as draw_roles
from rallypoint.backends.kubernetes.roles.units import KubernetesUnits, UnitParts
from rallypoint.backends.kubernetes.roles.wrapped import appwrapper_of
from rallypoint.backends.kubernetes.standby import settle_supervisors, standing_by
from rallypoint.backends.kubernetes.statuses import Statuses
from rallypoint.backends.kubernetes.store import Store, is_job_name
from rallypoint.backends.kubernetes.sweeping import Sweeper
from rallypoint.backends.kubernetes.tending import tending
from rallypoint.backends.kubernetes.watching.cluster import Cluster, joined
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.known_pods import Known, node_pods, place_of_rank
from rallypoint.backends.kubernetes.watching.observe import Observer
from rallypoint.backends.kubernetes.wrapped.blueprint import draw as draw_wrapped
from rallypoint.backends.kubernetes.wrapped.kinds import RAYS
from rallypoint.backends.kubernetes.wrapped.kuberay import rays_of
from rallypoint.backends.kubernetes.wrapped.runtime import Wrapped, sweep_wrappers
from rallypoint.backends.kubernetes.wrapped.submission import check as check_wrapped
from rallypoint.backends.kubernetes.wrapped.template import pytorchjob_of
from rallypoint.backends.sweeping import EVERY, sweeping
from rallypoint.job import ElasticJob
from rallypoint.job.compile_roles import has_roles
from rallypoint.job.platform import refuse_elsewhere
from rallypoint.supervision.actions import Action
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Kind, OrphanPolicy, Plan
from rallypoint.wire.status import JobStatus
from rallypoint.wire.tls import AUTO

__all__ = ["KubernetesBackend", "draw"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Parts:
    """What the backend is made of, for one event loop."""

    def __init__(self, cluster: Cluster, *, beat: float, silent: float) -> None:
        self.cluster = cluster
        self.store = Store(cluster)
        self.heart = cluster.heart(beat)
        self.machines = Machines(cluster)
        self.holds = Holds(cluster, self.store, self.machines, silent=silent)
        self.coordinators = Coordinators(cluster)
        self.lost = LostPods(cluster, self.machines, self.coordinators)
        self.observer = Observer(cluster, self.store, self.lost)
        self.actor = Actor(cluster, self.store, self.lost)
        self.statuses = Statuses(cluster, self.store, self.coordinators, self.holds)
        self.wrapped = Wrapped(cluster, self.store)
        self.sweeper = Sweeper(cluster)
        self.secrets = AttemptSecrets(cluster)


class KubernetesBackend(Backend):
    """Jobs of one namespace: as plain pods, or in a wrapper that another controller makes pods of.

    Args:
        access: which cluster, and which namespace of it.
        clock: gives the time of submission, in seconds since the epoch.
        beat: seconds between two beats of a supervisor's heart; `silent` without one until its jobs are taken over.
        sweeps: seconds between two looks at jobs that are over, while this process supervises any.
    """

    name = "kubernetes"
    #: The watches tell of everything that happens, so a job is looked at without a reason only now and then, and its clock,
    #: which counts two minutes of a gap at the most, is written down seldom.
    poll = 15.0
    clock_saved_every = 60.0

    def __init__(
        self,
        access: Access,
        *,
        clock: Callable[[], float] = time.time,
        beat: float = BEAT,
        silent: float = SILENT,
        sweeps: float = EVERY,
    ) -> None:
        self.access = access
        self._clock, self._beat, self._silent, self._sweeps = clock, beat, silent, sweeps
        self._stack: contextlib.AsyncExitStack | None = None
        self._parts: _Parts | None = None
        self._joining = asyncio.Lock()

    async def _its(self) -> _Parts:
        """Return what does the work, once this event loop has a cluster."""
        if self._parts is None:
            async with self._joining:
                if self._parts is None:
                    self._stack = contextlib.AsyncExitStack()
                    cluster = await self._stack.enter_async_context(joined(self.access))
                    self._parts = _Parts(cluster, beat=self._beat, silent=self._silent)
        return self._parts

    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        """Return every manifest of the job's first attempt."""
        refuse_elsewhere(job.platform, job.namespace, backend=self.name, its_namespace=self.access.namespace)
        return draw(job, namespace=self.access.namespace, orphan_policy=orphan_policy)

    def plan_manifest(
        self,
        manifest: Mapping[str, Any],
        *,
        kind: Kind | None = None,
        orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE,
        hidden: tuple[str, ...] = (),
    ) -> Blueprint:
        """Return what `submit` would create for an AppWrapper or a PyTorchJob; see `wrapped.blueprint.draw`."""
        return draw_wrapped(manifest, namespace=self.access.namespace, kind=kind, orphan_policy=orphan_policy, hidden=hidden)

    def plan_as(self, job: ElasticJob, kind: Kind, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        """Return what `submit` would create for a job of any kind: as `plan`, or in an object of that kind."""
        if kind is Kind.PODS:
            return self.plan(job, orphan_policy=orphan_policy)
        for role in job.roles:
            if role.node_group_failover.label:
                raise SubmitError(
                    f"roles.{role.name}.node_group_failover: is not allowed with kind {kind.value}, because another controller "
                    "creates the pods of such a job; remove the field, or run the job with kind pods"
                )
        several = kind is Kind.APPWRAPPER and has_roles(job)
        made = rays_of(job, kind) if kind in RAYS else appwrapper_of(job) if several else pytorchjob_of(job)
        where = self.access.namespace
        refuse_elsewhere(job.platform, job.namespace, backend=self.name, its_namespace=where)
        return draw_wrapped(made, namespace=where, kind=kind, job=job, orphan_policy=orphan_policy)

    def units(self, name: str) -> UnitBackend:
        """Return the pods of a job's simple roles; the jobs of its elastic roles are in this backend."""
        return KubernetesUnits(self, self._of_units, namespace=self.access.namespace)

    async def _of_units(self) -> UnitParts:
        its = await self._its()
        return UnitParts(cluster=its.cluster, store=its.store, actor=its.actor, secrets=its.secrets)

    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        """Create the job's ConfigMap, once the API server has accepted all of its objects in a dry run."""
        its = await self._its()
        existing = await its.store.load(blueprint.plan.name, now=True)
        if existing is None:
            await self._check(its, blueprint)
            try:
                created = await its.store.create(blueprint, owner=owner, now=self._clock())
            except JobExistsError:
                existing = await its.store.load(blueprint.plan.name, now=True)
                if existing is None:
                    raise
            else:
                await its.store.keep_function(created.record, blueprint)
                return created
        if existing.is_of(blueprint, owner=owner):
            await its.store.keep_function(existing.record, blueprint)  # a submission may have been cut off before it
            return existing
        raise JobExistsError.of(existing, blueprint, owner=owner, where=f" in namespace {self.access.namespace}")

    async def _check(self, its: _Parts, blueprint: Blueprint) -> None:
        if blueprint.plan.kind is Kind.PODS:
            await check(its.cluster, blueprint)
        else:
            await check_wrapped(its.cluster, blueprint)

    async def load(self, name: str) -> Stored | None:
        """Read the job's ConfigMap. Raises `HeldError` where this process held the job and has lost it."""
        its = await self._its()
        stored = await its.store.load(name)
        if its.holds.holds(name):
            its.holds.check(await its.store.view(name))
        return stored

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        """Patch the job's ConfigMap at its version."""
        its = await self._its()
        if blueprint is None:
            return await its.store.save(record, version=version, blueprint=None)
        await self._check(its, blueprint)
        await its.store.keep_function(record, blueprint)
        before = await its.store.load(record.name)
        saved = await its.store.save(record, version=version, blueprint=blueprint)
        if before is not None and before.plan.network_policy and not blueprint.plan.network_policy:
            await remove_network_policy(its.cluster, its.store.ref(record))
        return saved

    async def observe(self, record: JobRecord) -> Observation:
        """Look at what the watches told of, or ask where they are not up to date."""
        return await self._observe(record, now=False)

    async def confirm(self, record: JobRecord) -> Observation:
        """Ask the API server itself."""
        return await self._observe(record, now=True)

    async def _observe(self, record: JobRecord, *, now: bool) -> Observation:
        its = await self._its()
        stored = await its.store.load(record.name)
        if stored is not None and stored.plan.kind is not Kind.PODS:
            return await its.wrapped.observe(record, stored.plan, now=now)
        return await its.observer.observe(record, now=now)

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        """Create or delete; see `Backend.act`."""
        its = await self._its()
        if plan.kind is Kind.PODS:
            await its.actor.act(record, action)
        else:
            await its.wrapped.act(record, plan, action)

    @contextlib.asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[Changes]:
        """Follow a job by the watches that all jobs share."""
        if not is_job_name(name):
            raise JobNotFoundError(f"{name!r} is not a valid job name; expected lower-case letters, digits and '-'")
        async with (await self._its()).cluster.following(name) as changes:
            yield changes

    @contextlib.asynccontextmanager
    async def hold(self, name: str, *, holder: str) -> AsyncIterator[None]:
        """Name this process in the job's ConfigMap; its coordinator is told of its agents meanwhile.

        A process that holds a job looks after those of the namespace that are over, too.
        """
        its = await self._its()
        await its.holds.require_free(name, its.heart.id)
        await its.heart.join(holder)
        try:
            await its.holds.take(name, its.heart.id, holder)
            try:
                async with (
                    tending(its.cluster, its.store, its.coordinators, its.lost, name, its.heart.id),
                    standing_by(its.cluster, its.store, its.machines, name),
                    sweeping(its.cluster, its.sweeper.sweep, every=self._sweeps),
                    renewing(name, lambda: self._renew(its, name)),
                ):
                    yield
                await self._leave(its, name)
            finally:
                await its.holds.give_back(name)
        finally:
            await its.heart.leave()

    async def _renew(self, its: _Parts, name: str) -> None:
        """Renew the certificates of a job that has its own."""
        stored = await its.store.load(name)
        if stored is not None and stored.plan.tls == AUTO and stored.record.attempt > 0:
            kind, record = stored.plan.kind, stored.record
            # An AppWrapper keeps its Secret when its own controller retries it.
            attempt = record.attempt if kind is Kind.PODS else await its.wrapped.attempt(record, stored.plan)
            await its.secrets.renew(its.store.ref(record), attempt)
            if stored.plan.roles:
                await its.secrets.renew_roles(its.store.ref(record))

    async def _leave(self, its: _Parts, name: str) -> None:
        """Do for a job that is over what nobody will come back for."""
        try:
            stored = await its.store.load(name)
            if stored is not None and stored.record.finished:
                await its.actor.close_groups(stored.record)
        except BackendError as error:
            log.info("job=%s: the supervisor cannot inform Kueue that the job has ended: %s", name, error)
        await its.sweeper.stamp(name)

    @contextlib.asynccontextmanager
    async def heartbeat(self, holder: str) -> AsyncIterator[Holder]:
        """Renew a Lease."""
        heart = (await self._its()).heart
        me = await heart.join(holder)
        try:
            yield me
        finally:
            await heart.leave()

    async def pulse(self, holder: Holder) -> Pulse | None:
        """Read that Lease."""
        return await read_pulse((await self._its()).cluster, holder)

    async def is_settled(self, record: JobRecord) -> bool:
        """Return whether all pods that carry the job's uid are gone, the supervisor's included."""
        its = await self._its()
        ref = its.store.ref(record)
        if any(not pod.only_kept for pod in await its.cluster.pods_of(ref)):
            return False
        return await settle_supervisors(its.cluster, its.machines, ref)

    async def sweep(self, record: JobRecord) -> bool:
        """Delete every pod that carries the job's uid; see `Backend.sweep`."""
        its = await self._its()
        view = await its.store.view(record.name, now=True)
        if view is not None and view.job_uid == record.uid:
            return True
        if await sweep_wrappers(its.cluster, record):
            return False
        pods = await its.cluster.pods_of(its.store.ref(record))
        for pod in pods:
            await its.actor.close_group(pod)
            if not pod.only_kept:
                await its.cluster.delete("pods", pod.name, uid=pod.uid, grace=0)
        return all(pod.only_kept for pod in pods)

    async def check_size(self, stored: Stored, size: Size) -> None:
        """A queue has admitted `min_nodes` nodes as one group, which would never be whole again with fewer of them."""
        its = await self._its()
        spec, plan, _ = await its.store.spec(stored.record)
        if size.max_nodes < plan.min_nodes and queue_of(role_of(spec, plan)):
            raise ResizeError(
                f"nodes: '{size}' is not allowed for job {stored.record.name}; the maximum must be {plan.min_nodes} or more, "
                f"because Kueue admitted {plan.min_nodes} nodes together"
            )

    async def status(self, name: str) -> JobStatus | None:
        """Ask the coordinator itself, or else read what it wrote down last."""
        return await (await self._its()).statuses.status(name)

    async def written(self, name: str) -> JobStatus | None:
        """Read the status ConfigMap, as the watch told of it."""
        return await (await self._its()).statuses.written(name)

    async def status_age(self, name: str, status: JobStatus) -> float | None:
        """Compare with the API server's clock, which stands in the status ConfigMap; what was just given is new."""
        return await (await self._its()).statuses.age(name, status)

    async def clocks(self, record: JobRecord, status: JobStatus | None) -> tuple[PlaceClock, ...]:
        """Read the Leases of the machines of silent pods."""
        its = await self._its()
        stored = await its.store.load(record.name)
        if stored is None or stored.plan.kind is not Kind.PODS or record.released:
            return ()
        pods = await its.cluster.pods_of(its.store.ref(record))
        return await loss_clocks(its.machines, record, pods, status, silent=its.statuses.silent(record.uid))

    async def names(self) -> tuple[str, ...]:
        """List the ConfigMaps that are jobs."""
        return await (await self._its()).store.names()

    async def logs(
        self, name: str, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the logs of the job's pods; see `Backend.logs`."""
        its = await self._its()
        stored, reader = await self._reader(its, name, rank=rank, cursor=cursor)
        if not follow:
            async for line in reader.read():
                yield line
            return

        async def look(before: Known) -> Known:
            try:
                now = await its.store.load(name)
                if now is None or now.record.uid != stored.record.uid:
                    return dataclasses.replace(before, over=True)
                return await self._known(its, now, rank)
            except BackendError:
                return before

        async with its.cluster.following(name):
            async for line in reader.follow(look):
                yield line

    async def _known(self, its: _Parts, stored: Stored, rank: int | None) -> Known:
        """Return what is known of the pods whose logs are read."""
        record = stored.record
        chosen = functools.partial(node_pods, ref=its.store.ref(record), record=record, plan=stored.plan)
        place = None
        if rank is not None and stored.plan.kind is Kind.PODS:
            place = place_of_rank(await its.statuses.written(record.name), rank, uid=record.uid)
        return Known(chosen=chosen, rank_place=place, over=record.released)

    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of the logs of the job's pods; see `Backend.tail`."""
        its = await self._its()
        stored, reader = await self._reader(its, name, rank=rank)
        status = await its.statuses.written(name)
        world = () if rank is None or status is None else status.world
        node = next((m.node for m in world if rank is not None and 0 <= rank - m.first_rank < m.local_world_size), None)
        return await reader.tail(lines, node=node, local_ranks=stored.plan.nproc_per_node)

    async def _reader(self, its: _Parts, name: str, *, rank: int | None, cursor: str = "") -> tuple[Stored, LogReader]:
        stored = await its.store.load(name, now=True)
        if stored is None:
            raise JobNotFoundError(f"job {name!r} not found in namespace {self.access.namespace}")
        ref, ranks, known = its.store.ref(stored.record), rank_limit(stored.plan), await self._known(its, stored, None)
        reader = functools.partial(LogReader, its.cluster, ref, rank=rank, cursor=cursor, known=known, ranks=ranks)
        return stored, await asyncio.to_thread(reader)

    async def close(self) -> None:
        """Leave the cluster; the last one to leave closes its connections."""
        stack, self._stack, self._parts = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    def configmap(self, name: str) -> str:
        """Return the name of the ConfigMap that is a job, for people."""
        return f"{self.access.namespace}/{job_configmap(name)}"


def draw(job: ElasticJob, *, namespace: str, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
    """Return the blueprint of a job; raises `SubmitError` for one that cannot run as pods."""
    if has_roles(job):
        return draw_roles(job, namespace=namespace, uid=PLACEHOLDER, orphan_policy=orphan_policy)
    return draw_one(job, namespace=namespace, orphan_policy=orphan_policy)
