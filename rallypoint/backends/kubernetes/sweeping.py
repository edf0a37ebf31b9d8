"""Deleting jobs of a namespace that are over for long enough, by whoever supervises another job there.

When a job ended is written into its ConfigMap as the API server's clock had it, and compared with that clock again: the clocks
of those who supervise are never compared. Whoever supervised the job to its end writes it; where that was cut off, the first
process that comes by, so that a job is rather kept too long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
    """A job that is over, and nobody's: its `attempt` was its last; it is kept for `kept` seconds."""

    view: ConfigMapView
    attempt: int
    kept: float


class Sweeper:
    """Looks through the jobs that the watches of one namespace tell of."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: What was read of jobs at a version of their ConfigMaps, by its uid: most of them stay as they are.
        self._read: dict[str, tuple[str, _Ended | None]] = {}

    async def sweep(self) -> None:
        """Delete what is over for long enough; stamp what is over and has no stamp. Raises `BackendError`."""
        if not self._cluster.fresh:
            return
        ended = list(self._ended())
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
        job = None if view is None or view.deleting else _read(view)
        if job is None or read_stamp(job.view.ended, job.attempt) is not None:
            return
        try:
            await self._stamp(job, await self._cluster.api.time())
        except BackendError as error:
            log.info("job=%s: cannot record when the job ended: %s; another process retries within some minutes", name, error)

    def _ended(self) -> Iterator[_Ended]:
        views = list(self._cluster.cache.jobs)
        known, self._read = self._read, {}
        for view in views:
            version, job = known.get(view.uid, ("", None))
            if version != view.version:
                job = None if view.holder or view.deleting else _read(view)
            self._read[view.uid] = (view.version, job)
            if job is not None:
                yield job

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


def _read(view: ConfigMapView) -> _Ended | None:
    """Return what is to be known of a job that is over; None for one that is not, or that cannot be understood."""
    try:
        record = JobRecord.from_json(view.data.get(RECORD_KEY, ""))
        plan = codec.loads(Plan, view.data.get(PLAN_KEY, ""))
        # An elastic role of another job goes with that job.
        kept = None if plan.job else kept_for(record, Policy.from_plan(plan))
    except codec.WireError as error:
        log.debug("ConfigMap %s: %s", view.name, error)
        return None
    return None if kept is None else _Ended(view=view, attempt=record.attempt, kept=kept)


def read_stamp(text: str, attempt: int) -> float | None:
    """Return when an attempt ended, in seconds since the epoch; None where nothing of that attempt was written."""
    which, _, when = text.partition("@")
    return float(when) if which == str(attempt) and when.isascii() and when.isdigit() else None
