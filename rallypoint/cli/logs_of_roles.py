"""Output of the instances of a job with several roles: of one role, or of all."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.backends.role_logs import role_output
from rallypoint.supervision.resizing import sized
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.role_plans import RolePlan, role_plans

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored

__all__ = ["RoleError", "Wanted", "role_lines", "wanted"]


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
    lines = role_output(backend, stored, roles, rank=what.rank, tail=what.tail, follow=what.follow)
    async with contextlib.aclosing(lines) as following:  # type: ignore[type-var]
        async for role, line in following:
            yield _label(role, line, what, several=several), line


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
