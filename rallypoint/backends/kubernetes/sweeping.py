"""Deleting jobs of a namespace that are over for long enough, by whoever supervises another job there.

When a job ended is written into its ConfigMap as the API server's clock had it, and compared with that clock again: the clocks
of those who supervise are never compared. Whoever supervised the job to its end writes it; where that was cut off, the first
process that comes by, so that a job is rather kept too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.manifests.objects import PLAN_KEY, RECORD_KEY
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import ENDED, ConfigMapView
from rallypoint.supervision.policy import Policy, kept_for
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan

__all__ = ["Sweeper", "read_stamp"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """A finished job without a supervisor: its `attempt` was its last; it is kept for `kept` seconds."""

    view: ConfigMapView
    attempt: int
    kept: float


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The result of reading the `data` of a ConfigMap: the last attempt and the seconds to keep the job, or None."""

    data: Mapping[str, str]
    found: tuple[int, float] | None


class Sweeper:
    """Looks through the jobs that the watches of one namespace tell of."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: By the uid of the ConfigMap. Most jobs stay as they are, and only their annotations change.
        self._read: dict[str, _Read] = {}

    async def sweep(self) -> None:
        """Delete what is over for long enough; stamp what is over and has no stamp. Raises `BackendError`."""
        if not self._cluster.fresh:
            return
        ended = [job for view in tuple(self._cluster.cache.jobs) if (job := await self._finished(view)) is not None]
        self._forget()
        if not ended:
            return
        now = await self._cluster.api.time()
        for job in ended:
            try:
                await self._treat(job, now)
            except ApiError as error:
                if error.status not in (404, 409):  # somebody was faster, or has begun it again
                    raise

    async def stamp(self, name: str) -> None:
        """Write down that a job is over, by whoever has just supervised it; where that fails another process does it."""
        view = self._cluster.cache.job(names.job_configmap(name))
        job = None if view is None else await self._finished(view, held=True)
        if job is None or read_stamp(job.view.ended, job.attempt) is not None:
            return
        try:
            await self._stamp(job, await self._cluster.api.time())
        except BackendError as error:
            log.info("job=%s: cannot record when the job ended: %s; another process retries within some minutes", name, error)

    async def _finished(self, view: ConfigMapView, *, held: bool = False) -> _Ended | None:
        """Return the job if it is finished and, except with `held`, has no supervisor."""
        if view.deleting or (view.holder and not held):
            return None
        known = self._read.get(view.uid)
        if known is None or known.data != view.data:
            # A namespace may hold a thousand large records: one at a time, and not on the event loop.
            known = self._read[view.uid] = _Read(data=view.data, found=await asyncio.to_thread(_last, view))
        return None if known.found is None else _Ended(view=view, attempt=known.found[0], kept=known.found[1])

    def _forget(self) -> None:
        there = {view.uid for view in self._cluster.cache.jobs}
        self._read = {uid: read for uid, read in self._read.items() if uid in there}

    async def _treat(self, job: _Ended, now: float) -> None:
        view, ended = job.view, read_stamp(job.view.ended, job.attempt)
        if ended is None:
            await self._stamp(job, now)
        elif now - ended >= job.kept:
            await self._cluster.delete("configmaps", view.name, uid=view.uid, version=view.version)
            log.info(
                "job=%s: deleted the job, because it succeeded %g s ago (success TTL: %g s)", view.job, now - ended, job.kept
            )

    async def _stamp(self, job: _Ended, now: float) -> None:
        change = {"metadata": {"resourceVersion": job.view.version, "annotations": {ENDED: f"{job.attempt}@{now:.0f}"}}}
        changed = await self._cluster.patch("configmaps", job.view.name, change, MERGE_PATCH)
        self._cluster.cache.jobs.put(changed)


def _last(view: ConfigMapView) -> tuple[int, float] | None:
    """Return the last attempt of a finished job and the seconds to keep it; None for other jobs and unreadable ones."""
    try:
        record = JobRecord.from_json(view.data.get(RECORD_KEY, ""))
        plan = codec.loads(Plan, view.data.get(PLAN_KEY, ""))
        # An elastic role of another job goes with that job.
        kept = None if plan.job else kept_for(record, Policy.from_plan(plan))
    except codec.WireError as error:
        log.debug("ConfigMap %s: %s", view.name, error)
        return None
    return None if kept is None else (record.attempt, kept)


def read_stamp(text: str, attempt: int) -> float | None:
    """Return when an attempt ended, in seconds since the epoch; None where nothing of that attempt was written."""
    which, _, when = text.partition("@")
    return float(when) if which == str(attempt) and when.isascii() and when.isdigit() else None
