"""The instances of simple roles as pods: started once, seen by the watch, and ended by their uid."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from rallypoint.backends.contract import ActionError, Backend, BackendError, Blueprint, LogLine, Tail, UnitBackend
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.act import Actor
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError, action_error
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.manifests.blueprint import in_the_image
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.blueprint import child, serving
from rallypoint.backends.kubernetes.roles.directory import directory_pod, directory_url
from rallypoint.backends.kubernetes.roles.gang import gang_of
from rallypoint.backends.kubernetes.roles.known import containers, number_of
from rallypoint.backends.kubernetes.roles.layout import Group, Instance, group_of
from rallypoint.backends.kubernetes.roles.lives import LIVES_KEY, Life, Lives, MadePod, instance_of, read_lives
from rallypoint.backends.kubernetes.roles.pods import unit_pod
from rallypoint.backends.kubernetes.roles.seen import seen
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.known_pods import Known
from rallypoint.backends.kubernetes.watching.logs import Listener
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.job import ElasticJob
from rallypoint.supervision.conductor import wants
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import ConductorRecord, Phase, UnitKey, UnitSeen
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan

__all__ = ["KubernetesUnits", "Parts", "UnitParts"]

log = logging.getLogger(__name__)

#: Writes of the lives that another supervisor may come before.
_TRIES = 5

#: Plurals of what serves the instances.
_KINDS = {
    "ConfigMap": "configmaps",
    "NetworkPolicy": "networkpolicies",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "Secret": "secrets",
    "Service": "services",
}

#: Lives of an instance between two resets of its role, at most.
_LIVES = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitParts:
    """What the units of one event loop need."""

    cluster: Cluster
    store: Store
    actor: Actor
    secrets: AttemptSecrets


Parts = Callable[[], Awaitable[UnitParts]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """A job as it is stored now."""

    spec: ElasticJob
    plan: Plan
    ref: JobRef
    conductor: ConductorRecord


class KubernetesUnits(UnitBackend):
    """Those of one job.

    Args:
        jobs: the backend of the job, which holds the jobs of its elastic roles, too.
        parts: gives what does the work, once this event loop has a cluster.
        namespace: of the job.
    """

    def __init__(self, jobs: Backend, parts: Parts, *, namespace: str) -> None:
        self.jobs, self._namespace = jobs, namespace
        self._parts = parts
        self._known: tuple[str, str, Lives] | None = None
        self._served: set[tuple[str, int]] = set()
        self._starting = asyncio.Lock()

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Return what the watch told of the pods, or ask where it is not up to date; see `UnitBackend.observe`."""
        its = await self._parts()
        ref = its.store.ref(record)
        lives = await self._lives(its, ref)
        await self._keep_directory(its, record)
        pods = await _pods(its, ref)
        # In a thread: a role may have thousands of instances.
        return await asyncio.to_thread(seen, pods, lives, tuple(its.cluster.cache.hosts))

    async def _keep_directory(self, its: UnitParts, record: JobRecord) -> None:
        """Replace the pod of the directory once it is gone, while the job runs."""
        conductor, ref = record.conductor, its.store.ref(record)
        if conductor is None or conductor.phase is not Phase.RUNNING:
            return
        known = its.cluster.cache.pods_of(ref.uid) if its.cluster.fresh else await its.cluster.pods_of(ref)
        pod = next((pod for pod in known if pod.labels.part is Part.DIRECTORY), None)
        if pod is not None:
            if pod.over:
                await its.actor.end_pod(pod, force=True)
            return
        spec, plan, ref = await its.store.spec(record)
        try:
            await its.actor.ensure("pods", directory_pod(ref, spec=spec, plan=plan))
        except BackendError as error:
            text = (
                "job=%s: cannot create the pod of the role directory, which lists the addresses of role instances: %s; retrying"
            )
            log.warning(text, record.name, error)

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Note the life, then create its pod; a container that the kubelet restarts needs none. See `UnitBackend.start`."""
        its = await self._parts()
        try:
            async with self._starting:
                await self._start(its, record, key)
        except ActionError:
            raise
        except BackendError as error:
            raise action_error(error, what=f"{key.role} {key.index}") from error

    async def _start(self, its: UnitParts, record: JobRecord, key: UnitKey) -> None:
        job = await self._job(its, record)
        if job is None or not wants(job.conductor, key):
            return
        await self._serve(its, job, key.attempt)
        group, one = _place(job.spec, key)
        at = f"{group.place}-{group.number}"
        lives = await self._lives(its, job.ref)
        last = lives.pods.get(at)
        if _was_started(lives, one, key):
            if last is not None and not last.made:  # the supervisor was stopped, or the API server refused it
                await self._make(its, job, group, last, lives)
            return
        pod = None if last is None else await self._pod(its, job.ref, group, last)
        if pod is not None and not pod.over:
            if last is not None and _restarts(pod, last, one, key):
                await self._write(its, job.ref, lambda known: known.with_instances(key))
                return
            if not pod.deleting:
                await its.actor.end_pod(pod)
            raise ActionError(
                f"cannot start a new pod for an instance, because its previous pod {pod.name} has not ended yet", waits=True
            )
        first = _first_lives(job.conductor, group, lives, key)
        number = 1 if last is None else last.number + 1
        noted = MadePod(attempt=key.attempt, number=number, lives={one.container: life for one, life in first.items()})
        keys = tuple(_key(one, life, key.attempt) for one, life in first.items())
        lives = await self._write(its, job.ref, lambda known: known.with_instances(*keys).with_pod(at, noted), since=lives)
        await self._make(its, job, group, noted, lives)

    async def _make(self, its: UnitParts, job: _Job, group: Group, last: MadePod, lives: Lives) -> None:
        """Create a pod that was noted, and note that it was created."""
        first = {one: last.lives[one.container] for one in group.instances if one.container in last.lives}
        manifest = unit_pod(
            job.ref,
            spec=job.spec,
            plan=job.plan,
            group=group,
            attempt=last.attempt,
            number=last.number,
            lives=first,
            url=directory_url(job.ref),
            gang=gang_of(job.ref, job.spec),
        )
        await its.actor.ensure("pods", manifest)
        made, at = dataclasses.replace(last, made=True), f"{group.place}-{group.number}"
        await self._write(its, job.ref, lambda known: known.with_pod(at, made))

    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        """Delete the pod of a life by its uid; other instances of the pod end, too. See `UnitBackend.stop`."""
        its = await self._parts()
        ref, container = its.store.ref(record), f"{key.role}-{key.index}="
        try:
            for pod in await _pods(its, ref):
                if container in pod.lives and any(unit.key == key for unit in seen((pod,), Lives(), ())):
                    await its.actor.end_pod(pod, force=force)
        except ApiError as error:
            raise ActionError(
                f"role {key.role}: cannot delete the pod of instance {key.index}: {error.said or error}"
            ) from error

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """Delete the Secrets, so that nothing more can start, and every pod that may still run; see `UnitBackend.release`.

        The pods that have ended stay for their logs until the job is deleted.
        """
        its = await self._parts()
        ref = its.store.ref(record)
        attempt = 0 if record.conductor is None else record.conductor.attempt
        await its.secrets.delete(ref, attempt)
        self._served.discard((record.uid, attempt))
        left = [pod for pod in await its.cluster.pods_of(ref) if not pod.only_kept]
        for pod in left:
            if record.finished:
                await its.actor.close_group(pod)
            if not pod.over or record.deletion:
                await its.actor.end_pod(pod, force=True)
        return not any(not pod.over or record.deletion for pod in left)

    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        """Return an elastic role as a job that the ConfigMap of this one owns; see `UnitBackend.blueprint`."""
        its = await self._parts()
        job = await self._job(its, record)
        if job is None:
            raise ActionError(f"job {record.name} was deleted")
        # A job of elastic roles alone starts no instance, and its pods need the same.
        await self._serve(its, job, job.conductor.attempt)
        whole, own = child(job.ref, job.spec, job.plan, role)
        return Blueprint(job=whole, plan=in_the_image(own, whole.roles[0]), objects=(), parent=job.ref)

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return nothing more: the pods have all variables of the calls between roles. See `UnitBackend.environment`."""
        return {}

    # --- What is stored

    async def logs(
        self, record: JobRecord, role: RolePlan, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the logs of the containers of a role; see `UnitBackend.logs`."""
        its = await self._parts()
        job = its.store.ref(record)
        known, lives = await self._known_pods(its, record, role, Lives())
        reader = await asyncio.to_thread(_UnitLogReader, its.cluster, job, rank=rank, cursor=cursor, known=known)
        if not follow:
            async for line in reader.read():
                yield line
            return

        async def look(before: Known) -> Known:
            nonlocal lives
            try:
                known, lives = await self._known_pods(its, record, role, lives)
            except BackendError:
                return before
            return known

        async with its.cluster.following(record.name):
            async for line in reader.follow(look):
                yield line

    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of the logs of the containers of a role; see `UnitBackend.tail`."""
        its = await self._parts()
        known, _ = await self._known_pods(its, record, role, Lives())
        reader = _UnitLogReader(its.cluster, its.store.ref(record), rank=rank, cursor="", known=known)
        return await reader.tail(lines, node=None, local_ranks=1)

    async def _known_pods(self, its: UnitParts, record: JobRecord, role: RolePlan, lives: Lives) -> tuple[Known, Lives]:
        """Return what is known of the pods whose logs are read, and the lives of the instances, as they were known before."""
        now, ref = await its.store.load(record.name), its.store.ref(record)
        over = now is None or now.record.uid != record.uid or now.record.released
        pods = await _pods(its, ref)
        if any(number_of(pod, lives) < pod.labels.incarnation for pod in pods):
            found = await its.cluster.get("configmaps", names.units_configmap(ref))
            lives = lives if found is None else (await asyncio.to_thread(_lives_of, found))[1]
        return Known(chosen=functools.partial(containers, ref=ref, role=role, lives=lives), over=over), lives

    async def _job(self, its: UnitParts, record: JobRecord) -> _Job | None:
        """Return the job as it is stored now; None where it is gone, or none with roles any more."""
        stored = await its.store.load(record.name, now=True)
        if stored is None or stored.record.uid != record.uid or stored.record.conductor is None:
            return None
        spec, plan, ref = await its.store.spec(record)
        return _Job(spec=spec, plan=plan, ref=ref, conductor=stored.record.conductor)

    async def _serve(self, its: UnitParts, job: _Job, attempt: int) -> None:
        """See to it that the job has what its instances need, and that this attempt may start pods."""
        if (job.ref.uid, attempt) in self._served:
            return
        certificates = await its.secrets.certificates(job.ref, job.plan)
        for manifest in serving(job.ref, job.spec, job.plan, token=secrets.token_hex(32), certificates=certificates):
            await its.actor.ensure(_KINDS[manifest["kind"]], manifest)
        await its.secrets.ensure(job.ref, job.plan, attempt)
        await its.actor.ensure("pods", directory_pod(job.ref, spec=job.spec, plan=job.plan))
        self._served.add((job.ref.uid, attempt))

    async def _lives(self, its: UnitParts, ref: JobRef) -> Lives:
        """Return the lives as this process knows them: it writes them itself while it supervises the job."""
        if self._known is None or self._known[0] != ref.uid:
            await self._read(its, ref)
        return Lives() if self._known is None else self._known[2]

    async def _read(self, its: UnitParts, ref: JobRef) -> None:
        found = await its.cluster.get("configmaps", names.units_configmap(ref))
        self._known = None if found is None else (ref.uid, *await asyncio.to_thread(_lives_of, found))

    async def _write(
        self, its: UnitParts, ref: JobRef, change: Callable[[Lives], Lives], *, since: Lives | None = None
    ) -> Lives:
        """Change the lives by compare-and-swap; with `since` only while they are the same."""
        for _ in range(_TRIES):
            if self._known is None:
                await self._read(its, ref)
            if self._known is None:
                raise ActionError(f"ConfigMap {names.units_configmap(ref)} was deleted")
            _, version, lives = self._known
            if since is not None and lives != since:
                break
            changed = change(lives)
            text = await asyncio.to_thread(changed.to_json)
            body = {"metadata": {"resourceVersion": version}, "data": {LIVES_KEY: text}}
            try:
                found = await its.cluster.patch("configmaps", names.units_configmap(ref), body, MERGE_PATCH)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                self._known = None
                continue
            self._known = (ref.uid, *await asyncio.to_thread(_lives_of, found))
            return changed
        raise ActionError("another supervisor is starting instances of this job; this supervisor starts none")

    async def _pod(self, its: UnitParts, ref: JobRef, group: Group, last: MadePod) -> PodView | None:
        name = names.unit_pod(ref, last.attempt, group.place, group.number, last.number)
        return next((pod for pod in await _pods(its, ref) if pod.name == name), None)


async def _pods(its: UnitParts, ref: JobRef) -> tuple[PodView, ...]:
    known = its.cluster.cache.pods_of(ref.uid) if its.cluster.fresh else await its.cluster.pods_of(ref)
    return tuple(pod for pod in known if pod.labels.part is Part.UNIT)


def _lives_of(found: Mapping[str, Any]) -> tuple[str, Lives]:
    try:
        lives = Lives.from_json((found.get("data") or {}).get(LIVES_KEY, ""))
    except ValueError as error:
        raise BackendError(f"ConfigMap {found['metadata']['name']}: {error}") from error
    return found["metadata"]["resourceVersion"], lives


def _place(spec: ElasticJob, key: UnitKey) -> tuple[Group, Instance]:
    group = group_of(spec, key.role, key.index)
    if group is None:
        raise ActionError(f"role {key.role}: the job has no instance {key.index} of this role", fatal=True)
    return group, next(one for one in group.instances if (one.role, one.index) == (key.role, key.index))


def _was_started(lives: Lives, one: Instance, key: UnitKey) -> bool:
    last = lives.instances.get(one.container)
    return last is not None and last >= key


def _restarts(pod: PodView, last: MadePod, one: Instance, key: UnitKey) -> bool:
    """Return whether this life is, or will be, one that the kubelet starts in a pod that is there."""
    first = last.lives.get(one.container)
    if pod.deleting or first is None or last.attempt != key.attempt or len(last.lives) < 2:
        return False
    return first.reset == key.reset and first.incarnation <= key.incarnation


def _first_lives(record: ConductorRecord, group: Group, lives: Lives, key: UnitKey) -> dict[Instance, Life]:
    """Return the lives with which the containers of a new pod begin: those that are wanted and were not started before."""
    roles = {role.name: role for role in record.roles}
    found = {}
    for one in group.instances:
        role = roles[one.role]
        life = Life(reset=role.reset, incarnation=role.incarnations[one.index])
        own = _key(one, life, key.attempt)
        if own == key or (wants(record, own) and not _was_started(lives, one, own)):
            found[one] = life
    return found


def _key(one: Instance, life: Life, attempt: int) -> UnitKey:
    return UnitKey(role=one.role, attempt=attempt, reset=life.reset, index=one.index, incarnation=life.incarnation)


class _UnitLogReader(LogReader):
    """The logs of one simple role; the ranks are the indices of its instances.

    A container that the kubelet has restarted continues the log of the earlier one, of which the kubelet keeps only the last.
    """

    def _ordered(self, every: Iterable[PodView]) -> list[PodView]:
        """Return each container of the role as a pod of its own: `main` is its name."""
        return [pod for pod in super()._ordered(every) if self._rank in (None, instance_of(pod.main)[1])]

    def _listener(self, pod: PodView) -> Listener:
        life, (_, index) = read_lives(pod.lives)[pod.main], instance_of(pod.main)
        return Listener(pod.labels.attempt, alone=index, round=life.reset * _LIVES + life.incarnation)

    def _logs_of(self, pod: PodView) -> Iterable[Mapping[str, str]]:
        restarted = pod.trainer is not None and pod.trainer.restarts > 0
        return ({"previous": "true"}, {}) if restarted else ({},)
