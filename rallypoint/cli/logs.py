"""`rallypoint logs`: what the ranks say."""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rallypoint.cli.doors import Doors
from rallypoint.cli.looking import find
from rallypoint.cli.options import Commands, add_job_command, natural
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, LogLine
    from rallypoint.wire.plan import Plan

__all__ = ["RankError", "add", "run"]

_DESCRIPTION = """\
Print what the ranks of a job have said, on standard output and standard error.
Where there are several ranks, each line has its rank in front.
"""


class RankError(RallypointError):
    """A job cannot have this rank."""

    def __init__(self, rank: int, plan: Plan) -> None:
        last = plan.max_nodes * plan.nproc_per_node - 1
        super().__init__(f"--rank {rank} is not allowed; job {plan.name} has ranks 0 to {last}")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "logs", "print what the ranks say", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("-r", "--rank", metavar="R", type=natural, help="of this rank alone")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("-n", "--tail", metavar="N", type=natural, help="begin with the last N lines of each rank and stream")
    streams = parser.add_mutually_exclusive_group()
    for stream in ("out", "err"):
        streams.add_argument(f"--std{stream}", dest="stream", action="store_const", const=stream, help=f"std{stream} alone")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lines."""
    asyncio.run(_print(args.doors, args))
    return 0


async def _print(doors: Doors, args: argparse.Namespace) -> None:
    async with doors.backend(args.where) as backend:
        plan = (await find(backend, args.name)).plan
        ranks = plan.max_nodes * plan.nproc_per_node
        if args.rank is not None and args.rank >= ranks:
            raise RankError(args.rank, plan)
        several = args.rank is None and ranks > 1
        async for line in _lines(backend, args):
            if args.stream in (None, line.stream):
                print(f"[{line.rank}] {line.text}" if several else line.text, flush=args.follow)


async def _lines(backend: Backend, args: argparse.Namespace) -> AsyncIterator[LogLine]:
    cursor = ""
    if args.tail is not None:
        last, cursor = await _tail(backend, args)
        for line in last:
            yield line
    if args.tail is None or args.follow:
        async for line in backend.logs(args.name, rank=args.rank, cursor=cursor, follow=args.follow):
            yield line


async def _tail(backend: Backend, args: argparse.Namespace) -> tuple[list[LogLine], str]:
    """Return the last lines of each stream of each rank, in their order, and the place where the rest begins."""
    kept: dict[tuple[int, str], deque[tuple[int, LogLine]]] = {}
    cursor, number = "", 0
    async for line in backend.logs(args.name, rank=args.rank):
        cursor, number = line.cursor, number + 1
        if args.stream in (None, line.stream):
            kept.setdefault((line.rank, line.stream), deque(maxlen=args.tail)).append((number, line))
    return [line for _, line in sorted((entry for lines in kept.values() for entry in lines), key=lambda e: e[0])], cursor
