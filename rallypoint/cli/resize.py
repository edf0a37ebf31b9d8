"""`rallypoint resize`: change the number of nodes of a job."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from rallypoint.cli.lookup import find
from rallypoint.cli.options import Commands, add_job_command
from rallypoint.cli.services import Services
from rallypoint.cli.suspend import nobody

if TYPE_CHECKING:
    from rallypoint.wire.node_range import Size

__all__ = ["add", "run"]

_DESCRIPTION = """\
Change the number of nodes of a job to N, or to a range from MIN to MAX.

The command returns before the job has its new size. The job's supervisor creates
missing nodes, or removes the nodes with the highest numbers; all workers restart
in a new round. This restart does not count against the budgets of the job. The
job keeps its new size until it is submitted again. Rallypoint can resize only
jobs with "profile: ladder" and "kind: pods".
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "resize", "change the number of nodes of a job", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("nodes", metavar="N[:MAX]", help="new number of nodes, or a range MIN:MAX")
    parser.add_argument("--role", metavar="ROLE", default="", help="elastic role to resize (for a job with several roles)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Store the request, and print which process will carry it out."""
    print("\n".join(asyncio.run(_wish(args.services, args))))
    return 0


async def _wish(services: Services, args: argparse.Namespace) -> list[str]:
    from rallypoint.backends.requests import request_resize, role_of  # noqa: PLC0415  --help does without
    from rallypoint.supervision.resizing import size_of  # noqa: PLC0415

    size = _read(args.nodes)
    async with services.backend(args.where) as backend:
        stored = await find(backend, args.name)
        what, sized = f"Job {args.name}", stored
        if args.role or stored.plan.roles:
            jobs, own = await role_of(backend, stored, args.role)
            what, sized = f"Role {args.role} of job {args.name}", await find(jobs, own)
        before = size_of(sized.record, sized.plan)
        if not await request_resize(backend, args.name, size, role=args.role):
            return [f"{what} already has {size} nodes; nothing was changed"]
        told = f"{what} is being resized from {before} to {size} nodes"
        return [told, *await nobody(backend, args.name, args.where)]


def _read(text: str) -> Size:
    from rallypoint.backends.requests import read_size  # noqa: PLC0415  as above

    return read_size(text)
