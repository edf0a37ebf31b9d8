"""Output of the instances of a job with several roles: of one role, or of all."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.supervision.resizing import sized
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.role_plans import RolePlan, role_plans

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored

__all__ = ["RoleError", "Wanted", "role_lines", "wanted"]

#: Seconds between two checks whether the job of an elastic role has started.
_LOOK = 0.2


class RoleError(RallypointError):
    """The job has no such role or rank."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The output to print; `role` "" selects all roles, `tail` None all lines."""

    role: str = ""
    rank: int | None = None
    tail: int | None = None
    follow: bool = False


def wanted(args: argparse.Namespace) -> Wanted:
    """Read the options of a command line."""
    return Wanted(role=args.role, rank=args.rank, tail=args.tail, follow=args.follow)


async def role_lines(backend: Backend, stored: Stored, what: Wanted) -> AsyncIterator[tuple[str, LogLine]]:
    """Yield each line with its prefix (`[rollout 1] `): role by role; with `follow`, in the order of writing."""
    roles = _chosen(stored, what)
    several = await _has_several_ranks(backend, stored, roles[0], what) if what.role else True
    if not what.follow:
        for role in roles:
            async for line in _lines(backend, stored, role, what):
                yield _label(role, line, what, several=several), line
        return
    lines: asyncio.Queue[tuple[str, LogLine] | None] = asyncio.Queue(maxsize=1000)

    async def read(role: RolePlan) -> None:
        try:
            async for line in _lines(backend, stored, role, what):
                await lines.put((_label(role, line, what, several=several), line))
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


def _chosen(stored: Stored, what: Wanted) -> tuple[RolePlan, ...]:
    roles, name = role_plans(stored.plan), stored.plan.name
    if what.role and what.role not in {role.name for role in roles}:
        if not roles:
            raise RoleError(f"--role {what.role} is not allowed for job {name}, which has one role; omit --role")
        known = ", ".join(role.name for role in roles)
        raise RoleError(f"--role {what.role} is not allowed for job {name}; expected one of {known}")
    if what.rank is not None and not what.role:
        raise RoleError(f"--rank {what.rank} requires --role, because job {name} has several roles")
    return tuple(role for role in roles if what.role in ("", role.name))


async def _has_several_ranks(backend: Backend, stored: Stored, role: RolePlan, what: Wanted) -> bool:
    """Return whether lines of several ranks are printed; raises `RoleError` for a rank that the role does not have.

    An elastic role has the size to which it was resized.
    """
    ranks = role.total
    if role.elastic:
        found = await backend.units(stored.plan.name).jobs.load(f"{stored.plan.name}-{role.name}")
        plan = role.read() if found is None else sized(found.plan, found.record)
        ranks = plan.max_nodes * plan.nproc_per_node
    if what.rank is not None and what.rank >= ranks:
        raise RoleError(f"--rank {what.rank} is not allowed; role {role.name} has ranks 0 to {ranks - 1}")
    return what.rank is None and ranks > 1


def _label(role: RolePlan, line: LogLine, what: Wanted, *, several: bool) -> str:
    if not what.role:
        return f"[{role.name} {line.rank}] "
    return f"[{line.rank}] " if several else ""


async def _lines(backend: Backend, stored: Stored, role: RolePlan, what: Wanted) -> AsyncIterator[LogLine]:
    units, record, cursor = backend.units(stored.plan.name), stored.record, ""
    own = f"{stored.plan.name}-{role.name}"
    if role.elastic and not await _begun(backend, units.jobs, stored, own, what):
        return
    if what.tail is not None:
        if role.elastic:
            tail = await units.jobs.tail(own, lines=what.tail, rank=what.rank)
        else:
            tail = await units.tail(record, role, lines=what.tail, rank=what.rank)
        cursor = tail.cursor
        for line in tail.lines:
            yield line
        if not what.follow:
            return
    if role.elastic:
        lines = units.jobs.logs(own, rank=what.rank, cursor=cursor, follow=what.follow)
    else:
        lines = units.logs(record, role, rank=what.rank, cursor=cursor, follow=what.follow)
    async with contextlib.aclosing(lines) as following:  # type: ignore[type-var]
        async for line in following:
            yield line


async def _begun(backend: Backend, jobs: Backend, stored: Stored, name: str, what: Wanted) -> bool:
    """Return whether the job of an elastic role exists; with `follow`, wait until it exists or the whole job has ended."""
    while await jobs.load(name) is None:
        current = await backend.load(stored.plan.name)
        if not what.follow or current is None or current.record.released:
            return False
        await asyncio.sleep(_LOOK)
    return True
