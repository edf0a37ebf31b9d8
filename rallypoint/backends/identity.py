"""Whether a stored record, plan or status belongs to the job in whose place it is. Pure.

A training script can write the files of its own job, a user of a namespace its ConfigMaps, and a program on a Ray cluster can
announce a ledger. The status, the pods and the logs of a job are looked up by the name and the uid in its record. So a record
that names another job would show that job, or change it.
"""

from __future__ import annotations

from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["require_job", "require_status"]


def require_job(record: JobRecord, plan: Plan, *, name: str, where: str, uid: str | None = None) -> None:
    """Raise `BackendError` where a record or its plan is not that of job `name`.

    Args:
        record, plan: as they were read.
        name: of the job whose place it is.
        where: the place, as users know it.
        uid: of the job by a label of the place; None where places have no labels.
    """
    for kind, found in (("record", record.name), ("plan", plan.name)):
        if found != name:
            raise BackendError(_foreign(where, kind, name, found))
    if uid is not None and record.uid != uid:
        raise BackendError(
            f"{where}: the record has the uid {record.uid!r:.100}, but the uid label of job {name!r} is {uid!r:.100}; {_REMEDY}"
        )
    for role in plan.roles:
        _require_role(role, name, where)


def require_status(status: JobStatus, *, name: str, where: str, kind: type[BackendError], uid: str | None = None) -> None:
    """Raise an error of `kind` for a status that is not that of job `name`; `uid` as in `require_job`."""
    if status.job != name:
        raise kind(_foreign(where, "status", name, status.job))
    if uid is not None and status.uid != uid:
        raise kind(f"{where}: the status has the uid {status.uid!r:.100}, but job {name!r} has the uid {uid!r:.100}")


def _require_role(role: Any, job: str, where: str) -> None:
    """Check the plan of a role, which would be submitted as a job of its name."""
    role_name, plan = role.get("name"), role.get("plan")
    expected = f"{job}-{role_name}" if role.get("elastic") is True else job
    found = plan.get("name", expected) if isinstance(plan, dict) else expected
    if found != expected:
        raise BackendError(_foreign(where, f"plan of role {role_name!r:.100}", expected, found))


_REMEDY = "delete this job's data there by hand, or restore it"


def _foreign(where: str, kind: str, name: str, found: Any) -> str:
    return f"{where}: the {kind} belongs to job {found!r:.100}, but this is the place of job {name!r}; {_REMEDY}"
