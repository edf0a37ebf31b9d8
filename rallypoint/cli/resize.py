"""`rallypoint resize`: more or fewer nodes for a job that runs."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from rallypoint.cli.doors import Doors
from rallypoint.cli.looking import find
from rallypoint.cli.options import Commands, add_job_command
from rallypoint.cli.suspend import nobody

if TYPE_CHECKING:
    from rallypoint.wire.size import Size

__all__ = ["add", "run"]

_DESCRIPTION = """\
Give a job other bounds of its world: N nodes, or from MIN to MAX.

It returns at once; the job's supervisor makes the nodes that are missing, or ends
those that are too many (the last ones), and the others regroup with the workers'
restart that every new round is. It costs no budget. The bounds hold until the job
is submitted anew. Jobs of profile ladder and kind pods can be resized.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "resize", "give a job more nodes, or fewer", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("nodes", metavar="N[:MAX]", help="so many nodes, or from N to MAX")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the wish down, and say who will fulfil it."""
    print("\n".join(asyncio.run(_wish(args.doors, args))))
    return 0


async def _wish(doors: Doors, args: argparse.Namespace) -> list[str]:
    from rallypoint.backends.requests import request_resize  # noqa: PLC0415  --help does without
    from rallypoint.supervision.resizing import size_of  # noqa: PLC0415

    size = _read(args.nodes)
    async with doors.backend(args.where) as backend:
        stored = await find(backend, args.name)
        before = size_of(stored.record, stored.plan)
        if not await request_resize(backend, args.name, size):
            return [f"Job {args.name} has a size of {size} nodes already; nothing was done"]
        told = f"Job {args.name} is being resized from {before} to {size} nodes"
        return [told, *await nobody(backend, args.name, args.where)]


def _read(text: str) -> Size:
    from rallypoint.backends.requests import read_size  # noqa: PLC0415  as above

    return read_size(text)
