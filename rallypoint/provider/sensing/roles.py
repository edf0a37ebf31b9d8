"""One role of a job with several, as a sensor judges it: by the record and status of the role. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.role_plans import RolePlan
from rallypoint.wire.status import Progress

__all__ = ["elastic_record", "simple_record"]

_OVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING)


def elastic_record(job: JobRecord, own: JobRecord | None, name: str) -> JobRecord | None:
    """Return the record of an elastic role, whose own job is `name`; None while that does not exist.

    A role that failed may run again while its job goes on. Of a job that is over, nothing runs again.
    """
    if own is None:
        return _as_ended(job, dataclasses.replace(job, name=name, progress=Progress())) if job.phase in _OVER else None
    if job.phase in _OVER and own.phase is not Phase.SUCCEEDED:
        return _as_ended(job, own)
    if own.phase is Phase.FAILED:
        return dataclasses.replace(own, phase=Phase.RESETTING, verdict=None)
    return own


def _as_ended(job: JobRecord, own: JobRecord) -> JobRecord:
    return dataclasses.replace(own, phase=job.phase, verdict=job.verdict, attempts=job.attempts)


def simple_record(job: JobRecord, role: RolePlan) -> JobRecord:
    """Return a record of a simple role: that of its job, which has succeeded once all instances of the role have."""
    record = dataclasses.replace(job, name=f"{job.name}-{role.name}", progress=Progress())
    own = next((one for one in job.conductor.roles if one.name == role.name), None) if job.conductor is not None else None
    if own is not None and role.total and len(own.done) == role.total and job.phase not in _OVER:
        return dataclasses.replace(record, phase=Phase.SUCCEEDED)
    return record
