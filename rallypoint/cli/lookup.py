"""Finding jobs in a backend."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rallypoint.cli.document import JobDocument, RoleDocument, SupervisorSeen

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Stored
    from rallypoint.supervision.record import JobRecord
    from rallypoint.wire.plan import Plan

__all__ = ["find", "look", "look_at_all", "roles_of", "supervisor_of"]


async def find(backend: Backend, name: str) -> Stored:
    """Return the stored record and plan of a job; raises `JobNotFoundError`, which names the existing jobs."""
    from rallypoint.backends.contract import JobNotFoundError  # noqa: PLC0415  --help does without the backends

    stored = await backend.load(name)
    if stored is None:
        names = await backend.names()
        others = f"existing jobs: {', '.join(names)}" if names else "there are no jobs"
        raise JobNotFoundError(f"job {name!r} not found; {others}")
    return _sized(stored)


def _sized(stored: Stored) -> Stored:
    """Return it with the present size of the job in its plan; a resize changes that of the submission."""
    from rallypoint.supervision.resizing import sized  # noqa: PLC0415  as above

    return dataclasses.replace(stored, plan=sized(stored.plan, stored.record))


async def look(backend: Backend, name: str) -> JobDocument:
    """Return the present state of a job; raises `JobNotFoundError`."""
    return await _document(backend, await find(backend, name))


async def supervisor_of(backend: Backend, record: JobRecord) -> SupervisorSeen | None:
    """Return the state of the supervisor that a record names; None if it names none."""
    if record.holder is None:
        return None
    pulse = await backend.pulse(record.holder)
    if pulse is None:
        return SupervisorSeen(alive=False, lost_at=record.last_now)
    if pulse.alive is False:
        return SupervisorSeen(alive=False, lost_at=pulse.at)
    return SupervisorSeen(alive=pulse.alive, note=pulse.note)


async def _document(backend: Backend, stored: Stored) -> JobDocument:
    record = stored.record
    status, supervisor = await backend.status(record.name), await supervisor_of(backend, record)
    age = None if status is None or record.finished else await backend.status_age(record.name, status)
    roles = await roles_of(backend, stored.record, stored.plan)
    return JobDocument(record=record, plan=stored.plan, status=status, supervisor=supervisor, status_age=age, roles=roles)


async def roles_of(backend: Backend, record: JobRecord, plan: Plan) -> tuple[RoleDocument, ...]:
    """Return the elastic roles of a job that have started; none for a job with one role."""
    from rallypoint.report.roles import read_roles  # noqa: PLC0415  as above

    roles = await read_roles(backend, record, plan)
    return tuple(RoleDocument(name=one.name, record=one.record, plan=one.plan, status=one.status) for one in roles)


async def look_at_all(backend: Backend) -> tuple[tuple[JobDocument, ...], tuple[str, ...]]:
    """Return the present states of all jobs, by name, and one error for each job that cannot be read.

    Jobs that are deleted in the meantime are omitted.
    """
    from rallypoint.backends.contract import BackendError  # noqa: PLC0415  as above

    found, errors = [], []
    for name in await backend.names():
        try:
            stored = await backend.load(name)
            if stored is not None:
                found.append(await _document(backend, _sized(stored)))
        except BackendError as error:
            errors.append(f"job {name!r}: {error}")
    return tuple(found), tuple(errors)
