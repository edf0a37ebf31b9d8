"""`rallypoint delete`: end a job and remove its folder."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from rallypoint.cli.doors import Doors
from rallypoint.cli.looking import find
from rallypoint.cli.options import Commands, add_command

if TYPE_CHECKING:
    from rallypoint.supervision.observation import Observation

__all__ = ["add", "describe", "run"]

_DESCRIPTION = """\
End a job, whatever it is doing, and remove its folder with its logs and record.

It asks nothing. Checkpoints that lie outside of the job's folder stay. The exit
code is 1 when there is no such job.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "delete", "end a job and remove its folder", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete the job, and say what was done."""
    try:
        print(asyncio.run(_delete(args.doors, args)))
    except KeyboardInterrupt:
        print(f"Interrupted; delete job {args.name} again to see the deletion to its end", file=sys.stderr)
        raise
    return 0


async def _delete(doors: Doors, args: argparse.Namespace) -> str:
    from rallypoint.backends.requests import delete  # noqa: PLC0415  --help does without the backends

    async with doors.backend(args.home) as backend:
        stored = await find(backend, args.name)
        seen = await backend.observe(stored.record)
        await delete(backend, args.name, holder="rallypoint delete")
        return describe(args.name, seen)


def describe(name: str, seen: Observation) -> str:
    """Return what a deletion did; `seen` is what was there before."""
    nodes = sum(1 for node in seen.nodes if node.present)
    parts = [f"{nodes} {'node' if nodes == 1 else 'nodes'}"] if nodes else []
    if any(coordinator.present for coordinator in seen.coordinators):
        parts.append("its coordinator")
    ended = f"{' and '.join(parts)} ended, " if parts else "nothing of it ran any more, "
    return f"Job {name} is deleted: {ended}its folder is removed"
