"""Jobs as ConfigMaps: made if absent, changed by compare-and-swap of their resourceVersion, removed if still of their uid."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rallypoint.backends.contract import BackendError, Blueprint, ConflictError, JobExistsError, Stored
from rallypoint.backends.identity import require_job, require_status
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError, submit_error
from rallypoint.backends.kubernetes.labels import JOB, PARENT, PART, Part
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.manifests.objects import (
    JOB_KEY,
    PLAN_KEY,
    RECORD_KEY,
    STATUS_KEY,
    function_secret,
    job_configmap,
    status_configmap,
)
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import ConfigMapView
from rallypoint.backends.kubernetes.watching.watch import Target, pages
from rallypoint.job import ElasticJob
from rallypoint.job.errors import JobError
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import STATUS_WRITTEN, JobStatus

__all__ = ["Store", "UnreadableStatusError", "is_job_name"]

T = TypeVar("T")

#: What the name of a ConfigMap, and of a job, may be.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


class UnreadableStatusError(BackendError):
    """What stands in the status ConfigMap is no status that this version understands."""


def is_job_name(name: str) -> bool:
    """Return whether there can be a job of this name on a cluster."""
    return _NAME.fullmatch(name) is not None


class Store:
    """The jobs of one namespace. What was read once is not parsed again while it is the same."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._parsed: dict[str, tuple[str, str, Stored]] = {}
        self._specs: dict[str, tuple[str, ElasticJob | BackendError]] = {}
        self._statuses: dict[str, tuple[str, str, JobStatus]] = {}

    def ref(self, record: JobRecord, owner: str = "", *, parent: str = "") -> JobRef:
        """Return what names, labels and owners of a job's objects are made of."""
        return JobRef(name=record.name, uid=record.uid, namespace=self._cluster.namespace, owner=owner, parent=parent)

    async def names(self) -> tuple[str, ...]:
        """Return the names of all jobs, sorted; those of elastic roles belong to their job."""
        path = self._cluster.path("configmaps")
        target = Target(path=path, selector=f"{JOB},{PART}={Part.JOB.value},!{PARENT}")
        found = [item["metadata"]["labels"][JOB] async for page in pages(self._cluster.api, target) for item in page.items]
        return tuple(sorted(found))

    async def view(self, name: str, *, now: bool = False) -> ConfigMapView | None:
        """Return a job's ConfigMap: as the watch told of it where that is up to date, or else (or with `now`) as it is."""
        if not is_job_name(name):
            return None
        configmap = names.job_configmap(name)
        known = self._cluster.cache.job(configmap) if self._cluster.fresh and not now else None
        # That there is none is asked of the server: it ends a job, and a watch may be a moment late.
        view = known or await self._cluster.job(configmap)
        return None if view is None or view.part != Part.JOB.value or view.deleting else view

    async def load(self, name: str, *, now: bool = False) -> Stored | None:
        """Return a job, or None when there is none. Raises `BackendError` where it cannot be understood."""
        view = await self.view(name, now=now)
        if view is None:
            self._forget(name)
            return None
        return await self._stored(view)

    async def _stored(self, view: ConfigMapView) -> Stored:
        known = self._parsed.get(view.job)
        if known is not None and known[:2] == (view.uid, view.version):
            return known[2]
        record, plan = await _aside(_read_job, view, size=sum(map(len, view.data.values())))
        if known is not None and known[2].plan == plan:
            plan = known[2].plan  # the same object for everybody who holds it
        stored = Stored(record=record, plan=plan, version=view.version)
        self._parsed[view.job] = (view.uid, view.version, stored)
        return stored

    async def spec(self, record: JobRecord) -> tuple[ElasticJob, Plan, JobRef]:
        """Return what the user asked for, as pods are made of it. Raises `BackendError` when the job is gone."""
        view = await self.view(record.name)
        if view is None or view.job_uid != record.uid:
            raise BackendError(f"job {record.name} was deleted")
        text = view.data.get(JOB_KEY, "")
        known = self._specs.get(record.name)
        if known is None or known[0] != text:
            known = self._specs[record.name] = (text, await asyncio.to_thread(_read_spec, text, view.name))
        spec = known[1]
        if isinstance(spec, BackendError):
            raise BackendError(str(spec))
        plan = (await self._stored(view)).plan
        return spec, plan, self.ref(record, view.uid, parent=plan.job)

    async def create(self, blueprint: Blueprint, *, owner: str, now: float) -> Stored:
        """Make a job if there is none of this name. Raises `JobExistsError` and `SubmitError`."""
        plan = blueprint.plan
        record = JobRecord.new(
            name=plan.name, uid=secrets.token_hex(8), digest=plan.digest, owner=owner, claimant=blueprint.claimant, now=now
        )
        ref, parent = self.ref(record, parent=plan.job), blueprint.parent
        manifest = job_configmap(ref, spec=blueprint.job, plan=plan, record=record, parent=parent)
        manifest["data"] |= blueprint.attached
        try:
            created = await self._cluster.create("configmaps", manifest)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                raise JobExistsError(
                    f"name: {plan.name!r} was just taken by another submission; choose another name"
                ) from error
            raise submit_error(error, namespace=self._cluster.namespace, what="the job's ConfigMap") from error
        return self._taken(created, record, plan)

    def _taken(self, found: Mapping[str, Any], record: JobRecord, plan: Plan) -> Stored:
        view = self._cluster.cache.jobs.put(found)
        version = found["metadata"]["resourceVersion"]
        stored = Stored(record=record, plan=plan, version=version)
        if view is not None:
            self._parsed[record.name] = (view.uid, version, stored)
        return stored

    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None) -> Stored:
        """Replace the record (and the job and its plan) if it is still at `version`."""
        configmap = names.job_configmap(record.name)
        data = {RECORD_KEY: codec.dumps_lines(record)}
        if blueprint is not None:
            data |= {JOB_KEY: blueprint.job.to_yaml(), PLAN_KEY: codec.dumps(blueprint.plan), **blueprint.attached}
        change = {"metadata": {"resourceVersion": version}, "data": data}
        try:
            changed = await self._cluster.patch("configmaps", configmap, change, MERGE_PATCH)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            # Whoever decides again must not decide on what has just been shown to be old.
            await self._cluster.job(configmap)
            raise ConflictError(f"job {record.name}: the record was changed by another process") from error
        plan = blueprint.plan if blueprint is not None else codec.loads(Plan, changed["data"][PLAN_KEY])
        known = self._parsed.get(record.name)
        if known is not None and known[2].plan == plan:
            plan = known[2].plan
        return self._taken(changed, record, plan)

    async def purge(self, record: JobRecord) -> None:
        """Remove a job of this name and uid; what it owns goes with it."""
        view = await self.view(record.name, now=True)
        if view is not None and view.job_uid == record.uid:
            await self._cluster.delete("configmaps", view.name, uid=view.uid)
            self._cluster.cache.jobs.forget(view.name, view.uid)
        self._forget(record.name)

    def _forget(self, name: str) -> None:
        self._parsed.pop(name, None)
        self._specs.pop(name, None)
        self._statuses.pop(name, None)

    async def keep_function(self, record: JobRecord, blueprint: Blueprint) -> None:
        """Make the Secret with what the workers call, if it is not there. Pods that need it wait until it is."""
        view = await self.view(record.name) if blueprint.function else None
        if view is None or view.job_uid != record.uid:
            return
        try:
            secret = function_secret(self.ref(record, view.uid), plan=blueprint.plan, function=blueprint.function)
            await self._cluster.create("secrets", secret)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise submit_error(error, namespace=self._cluster.namespace, what="the function's Secret") from error

    # --- The status

    async def ensure_status(self, ref: JobRef) -> None:
        """Make the ConfigMap for the coordinator's word, if it is not there."""
        try:
            self._cluster.cache.statuses.put(await self._cluster.create("configmaps", status_configmap(ref)))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def status(self, record: JobRecord, *, now: bool = False) -> JobStatus | None:
        """Return the coordinator's last word as it was written down, None before its first.

        Raises `UnreadableStatusError` where it cannot be understood.
        """
        view = self._cluster.cache.status(record.uid) if self._cluster.fresh and not now else None
        if view is None:
            found = await self._cluster.get("configmaps", names.status_configmap(self.ref(record)))
            view = None if found is None else self._cluster.cache.statuses.put(found)
        if view is None or not view.data.get(STATUS_KEY):
            return None
        known = self._statuses.get(record.name)
        if known is None or known[:2] != (view.uid, view.version):
            status = await _aside(_read_status, view, size=len(view.data[STATUS_KEY]))
            known = self._statuses[record.name] = (view.uid, view.version, status)
        return known[2]

    async def status_age(self, record: JobRecord) -> float | None:
        """Return how many seconds ago the status ConfigMap was written, by the API server's clock; None if unknown."""
        found = await self._cluster.get("configmaps", names.status_configmap(self.ref(record)))
        if found is None:
            return None
        written_at = parse_time(str((found["metadata"].get("annotations") or {}).get(STATUS_WRITTEN) or ""))
        return max(0.0, await self._cluster.time() - written_at) if written_at else None

    async def tell_status(self, record: JobRecord, status: JobStatus) -> None:
        """Write the coordinator's word in its place, for a coordinator that may not write it itself."""
        name = names.status_configmap(self.ref(record))
        change = {"data": {STATUS_KEY: codec.dumps(status)}}
        self._cluster.cache.statuses.put(await self._cluster.patch("configmaps", name, change, MERGE_PATCH))


async def _aside(read: Callable[[ConfigMapView], T], view: ConfigMapView, *, size: int) -> T:
    """Read a ConfigMap; a long one in a thread, since the event loop may have other jobs and other triggers."""
    return read(view) if size < _LONG else await asyncio.to_thread(read, view)


def _read_job(view: ConfigMapView) -> tuple[JobRecord, Plan]:
    where = f"ConfigMap {view.name}"
    try:
        record, plan = JobRecord.from_json(view.data.get(RECORD_KEY, "")), codec.loads(Plan, view.data.get(PLAN_KEY, ""))
    except codec.WireError as error:
        raise BackendError(f"{where}: {error}") from error
    name = view.name.removeprefix(names.PREFIX)
    require_job(record, plan, name=name, where=where, uid=view.job_uid)
    if view.job != name:
        raise BackendError(f"{where}: the label {JOB} names job {view.job!r:.100}, but this is the place of job {name!r}")
    return record, plan


def _read_status(view: ConfigMapView) -> JobStatus:
    where = f"ConfigMap {view.name}"
    try:
        status = codec.loads(JobStatus, view.data[STATUS_KEY])
    except codec.WireError as error:
        raise UnreadableStatusError(f"{where}: {error}") from error
    require_status(status, name=view.job, where=where, kind=UnreadableStatusError, uid=view.job_uid)
    return status


#: Characters of a text that is read in a thread; a shorter one takes a few milliseconds.
_LONG = 1 << 15


def _read_spec(text: str, where: str) -> ElasticJob | BackendError:
    """Return the job, or the error: both are remembered, since each action of a turn asks."""
    try:
        return ElasticJob.from_yaml(text)
    except JobError as error:
        return BackendError(f"ConfigMap {where}: {JOB_KEY}: {error}")
