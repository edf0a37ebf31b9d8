"""Output of the instances of several roles of a job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored
    from rallypoint.wire.role_plans import RolePlan

__all__ = ["role_output"]

#: Seconds between two checks whether the job of an elastic role has started.
_LOOK = 0.2


async def role_output(
    backend: Backend,
    stored: Stored,
    roles: Sequence[RolePlan],
    *,
    rank: int | None = None,
    tail: int | None = None,
    follow: bool = False,
) -> AsyncIterator[tuple[RolePlan, LogLine]]:
    """Yield each line with its role: role by role; with `follow`, in the order of writing. `tail` None is all lines."""
    if not follow:
        for role in roles:
            async for line in _lines(backend, stored, role, rank, tail, follow=False):
                yield role, line
        return
    lines: asyncio.Queue[tuple[RolePlan, LogLine] | None] = asyncio.Queue(maxsize=1000)

    async def read(role: RolePlan) -> None:
        try:
            async for line in _lines(backend, stored, role, rank, tail, follow=True):
                await lines.put((role, line))
        finally:
            await lines.put(None)

    tasks = [asyncio.create_task(read(role)) for role in roles]
    try:
        left = len(tasks)
        while left:
            found = await lines.get()
            if found is None:
                left -= 1
            else:
                yield found
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lines(
    backend: Backend, stored: Stored, role: RolePlan, rank: int | None, tail: int | None, *, follow: bool
) -> AsyncIterator[LogLine]:
    units, record, cursor = backend.units(stored.plan.name), stored.record, ""
    own = f"{stored.plan.name}-{role.name}"
    if role.elastic and not await _begun(backend, units.jobs, stored, own, follow=follow):
        return
    if tail is not None:
        if role.elastic:
            end = await units.jobs.tail(own, lines=tail, rank=rank)
        else:
            end = await units.tail(record, role, lines=tail, rank=rank)
        cursor = end.cursor
        for line in end.lines:
            yield line
        if not follow:
            return
    if role.elastic:
        lines = units.jobs.logs(own, rank=rank, cursor=cursor, follow=follow)
    else:
        lines = units.logs(record, role, rank=rank, cursor=cursor, follow=follow)
    async with contextlib.aclosing(lines) as following:  # type: ignore[type-var]
        async for line in following:
            yield line


async def _begun(backend: Backend, jobs: Backend, stored: Stored, name: str, *, follow: bool) -> bool:
    """Return whether the job of an elastic role exists; with `follow`, wait until it exists or the whole job has ended."""
    while await jobs.load(name) is None:
        current = await backend.load(stored.plan.name)
        if not follow or current is None or current.record.released:
            return False
        await asyncio.sleep(_LOOK)
    return True
