"""`rallypoint delete`: stop a job and delete everything that belongs to it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from rallypoint.backends.site import LOCAL, Site
from rallypoint.cli.lookup import find
from rallypoint.cli.options import Commands, add_job_command
from rallypoint.cli.services import Services

if TYPE_CHECKING:
    from rallypoint.supervision.observation import Observation

__all__ = ["add", "describe", "run"]

_DESCRIPTION = """\
Stop a job in any state and delete everything that belongs to the job. On the
local backend, the command deletes the job's folder with its record and logs; on
Kubernetes, the job's objects; on Ray, the job's actors and its record.

The command does not ask for confirmation. The command keeps
checkpoints outside the job's folder. The exit code is 1 if the job does not exist.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "delete", "delete a job and everything it created", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete the job, and print what was deleted."""
    try:
        print(asyncio.run(_delete(args.services, args)))
    except KeyboardInterrupt:
        print(
            f"Interrupted before the deletion of job {args.name} completed; run the command again to complete it",
            file=sys.stderr,
        )
        raise
    return 0


async def _delete(services: Services, args: argparse.Namespace) -> str:
    from rallypoint.backends.requests import delete  # noqa: PLC0415  --help does without the backends

    async with services.backend(args.where) as backend:
        stored = await find(backend, args.name)
        seen = await backend.observe(stored.record)
        await delete(backend, args.name, holder="rallypoint delete")
        return describe(args.name, seen, args.where.site)


def describe(name: str, seen: Observation, site: Site) -> str:
    """Return a sentence about a deletion; `seen` is the observation before it."""
    what = "folder was" if site.kind == LOCAL else "objects were"
    nodes = sum(1 for node in seen.nodes if node.present)
    parts = [f"{nodes} {'node' if nodes == 1 else 'nodes'}"] if nodes else []
    if any(coordinator.present for coordinator in seen.coordinators):
        parts.append("its coordinator")
    ended = f"{' and '.join(parts)} ended, " if parts else "nothing was running, "
    return f"Job {name} deleted: {ended}its {what} removed"
