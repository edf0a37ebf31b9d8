"""`rallypoint delete`: end a job and remove all that is kept of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from rallypoint.backends.site import LOCAL, Site
from rallypoint.cli.doors import Doors
from rallypoint.cli.looking import find
from rallypoint.cli.options import Commands, add_job_command

if TYPE_CHECKING:
    from rallypoint.supervision.observation import Observation

__all__ = ["add", "describe", "run"]

_DESCRIPTION = """\
End a job, whatever it is doing, and remove all that is kept of it: its record and
logs with its folder, or on Kubernetes every object of it.

It asks nothing. Checkpoints that lie elsewhere stay. The exit code is 1 when there
is no such job.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "delete", "end a job and leave nothing of it", _DESCRIPTION)
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

    async with doors.backend(args.where) as backend:
        stored = await find(backend, args.name)
        seen = await backend.observe(stored.record)
        await delete(backend, args.name, holder="rallypoint delete")
        return describe(args.name, seen, args.where.site)


def describe(name: str, seen: Observation, site: Site) -> str:
    """Return what a deletion did; `seen` is what was there before."""
    what = "folder is" if site.kind == LOCAL else "objects are"
    nodes = sum(1 for node in seen.nodes if node.present)
    parts = [f"{nodes} {'node' if nodes == 1 else 'nodes'}"] if nodes else []
    if any(coordinator.present for coordinator in seen.coordinators):
        parts.append("its coordinator")
    ended = f"{' and '.join(parts)} ended, " if parts else "nothing of it ran any more, "
    return f"Job {name} is deleted: {ended}its {what} removed"
