"""Finding jobs in a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.cli.document import JobDocument

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Stored

__all__ = ["find", "look", "look_at_all"]


async def find(backend: Backend, name: str) -> Stored:
    """Return what is stored of a job; raises `JobNotFoundError`, which names the jobs that are there."""
    from rallypoint.backends.contract import JobNotFoundError  # noqa: PLC0415  --help does without the backends

    stored = await backend.load(name)
    if stored is None:
        names = await backend.names()
        others = f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else ", and no other"
        raise JobNotFoundError(f"there is no job {name}{others}")
    return stored


async def look(backend: Backend, name: str) -> JobDocument:
    """Return what is true of a job now; raises `JobNotFoundError`."""
    stored = await find(backend, name)
    return JobDocument(record=stored.record, plan=stored.plan, status=await backend.status(name))


async def look_at_all(backend: Backend) -> tuple[JobDocument, ...]:
    """Return what is true of all jobs now, by name; a job that is deleted meanwhile is left out."""
    found = []
    for name in await backend.names():
        stored = await backend.load(name)
        if stored is not None:
            found.append(JobDocument(record=stored.record, plan=stored.plan, status=await backend.status(name)))
    return tuple(found)
