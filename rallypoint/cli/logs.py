"""`rallypoint logs`: the output of the ranks, and of the instances of a job with several roles."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from rallypoint.cli.lookup import find
from rallypoint.cli.options import Commands, add_job_command, natural
from rallypoint.cli.plain import is_screen
from rallypoint.cli.services import Services
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.printable import printable, terminal_stream

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine
    from rallypoint.wire.plan import Plan
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.backends.role_logs import role_output
from rallypoint.supervision.resizing import sized
from rallypoint.wire.plan import Kind
from rallypoint.wire.role_plans import RolePlan, role_plans

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine, Stored


__all__ = ["RankError", "Wanted", "add", "role_lines", "run", "wanted"]

_DESCRIPTION = """\
Print the standard output and standard error of the ranks of a job. If a job has
several ranks, each line starts with the number of the rank that wrote the line.

Control characters are escaped, so that a script cannot manipulate your
terminal. Colours in the output are kept if your terminal supports colours.
Lines longer than 64 KiB are split.
"""


class RankError(RallypointError):
    """The job has no such rank."""

    def __init__(self, rank: int, plan: Plan) -> None:
        last = plan.max_nodes * plan.nproc_per_node - 1
        super().__init__(f"--rank {rank} is not allowed; job {plan.name} has ranks 0 to {last}")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "logs", "print the output of a job's ranks", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "-r", "--rank", metavar="R", type=natural("rank"), help="print only the output of the rank with this number"
    )
    parser.add_argument(
        "--role", metavar="ROLE", default="", help="print only the output of this role (for a job with several roles)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="continue to print new output until the job ends")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=natural("number of lines"),
        help="number of lines to print from the end of each rank's stdout and stderr (default: all)",
    )
    parser.add_argument("--raw", action="store_true", help="print control characters in the output as they are, not escaped")
    streams = parser.add_mutually_exclusive_group()
    for stream in ("out", "err"):
        streams.add_argument(
            f"--std{stream}", dest="stream", action="store_const", const=stream, help=f"print only std{stream}"
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lines."""
    asyncio.run(_print(args.services, args))
    return 0


async def _print(services: Services, args: argparse.Namespace) -> None:
    shown, out = _shown(args), terminal_stream(sys.stdout)
    async with services.backend(args.where) as backend:
        stored = await find(backend, args.name)
        plan = stored.plan
        if plan.roles or args.role:
            async for label, line in role_lines(backend, stored, wanted(args)):
                if args.stream in (None, line.stream):
                    print(f"{label}{shown(line.text)}", file=out, flush=args.follow)
            return
        ranks = plan.max_nodes * plan.nproc_per_node
        if args.rank is not None and args.rank >= ranks:
            raise RankError(args.rank, plan)
        several = args.rank is None and ranks > 1
        async for line in _lines(backend, args):
            if args.stream in (None, line.stream):
                text = shown(line.text)
                print(f"[{line.rank}] {text}" if several else text, file=out, flush=args.follow)


def _shown(args: argparse.Namespace) -> Callable[[str], str]:
    """Return a function that escapes a line for the terminal."""
    if args.raw:
        return str
    return functools.partial(printable, colors=is_screen(os.environ, isatty=sys.stdout.isatty()))


async def _lines(backend: Backend, args: argparse.Namespace) -> AsyncIterator[LogLine]:
    cursor = ""
    if args.tail is not None:
        tail = await backend.tail(args.name, lines=args.tail, rank=args.rank)
        cursor = tail.cursor
        for line in tail.lines:
            yield line
    if args.tail is None or args.follow:
        async for line in backend.logs(args.name, rank=args.rank, cursor=cursor, follow=args.follow):
            yield line


class _RoleError(RallypointError):
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
        if not roles and stored.plan.kind is not Kind.PODS:
            kind = stored.plan.kind.value
            raise _RoleError(f"--role {what.role} is not allowed for job {name}, which has kind {kind}; omit --role")
        if not roles:
            raise _RoleError(f"--role {what.role} is not allowed for job {name}, which has one role; omit --role")
        known = ", ".join(role.name for role in roles)
        raise _RoleError(f"--role {what.role} is not allowed for job {name}; expected one of {known}")
    if what.rank is not None and not what.role:
        raise _RoleError(f"--rank {what.rank} requires --role, because job {name} has several roles")
    return tuple(role for role in roles if what.role in ("", role.name))


async def _has_several_ranks(backend: Backend, stored: Stored, role: RolePlan, what: Wanted) -> bool:
    """Return whether lines of several ranks are printed; raises `_RoleError` for a rank that the role does not have.

    An elastic role has the size to which it was resized.
    """
    ranks = role.total
    if role.elastic:
        found = await backend.units(stored.plan.name).jobs.load(f"{stored.plan.name}-{role.name}")
        plan = role.read() if found is None else sized(found.plan, found.record)
        ranks = plan.max_nodes * plan.nproc_per_node
    if what.rank is not None and what.rank >= ranks:
        raise _RoleError(f"--rank {what.rank} is not allowed; role {role.name} has ranks 0 to {ranks - 1}")
    return what.rank is None and ranks > 1


def _label(role: RolePlan, line: LogLine, what: Wanted, *, several: bool) -> str:
    if not what.role:
        return f"[{role.name} {line.rank}] "
    return f"[{line.rank}] " if several else ""
