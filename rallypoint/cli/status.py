"""`rallypoint status`: show jobs, nodes, ranks and incidents."""

from __future__ import annotations

import argparse
import asyncio
import sys

from rallypoint.cli.document import JobDocument, JobsDocument
from rallypoint.cli.lookup import look, look_at_all
from rallypoint.cli.options import Commands, add_job_command
from rallypoint.cli.screens import print_job, print_jobs
from rallypoint.cli.services import Services
from rallypoint.cli.watching import Watched, watch_to_the_end

__all__ = ["add", "run"]

_DESCRIPTION = """\
Show all jobs. With NAME, show the nodes, ranks and incidents of one job.

On a terminal, the output is coloured, unless the environment variable NO_COLOR
is set or TERM is dumb. With --watch, the exit code is 0 if the job succeeds and
1 if the job fails. Ctrl-C ends the command, and the job continues. Without NAME,
the command shows all jobs that it can read; the exit code is 1 if it cannot read
a job.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "status", "show jobs, nodes, ranks and incidents", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of a job (default: all jobs)")
    parser.add_argument("--watch", action="store_true", help="show each change of the status until the job ends")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; with --watch, one for each change of the job"
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Show one job or all jobs."""
    if args.watch and args.name is None:
        args.usage_error("--watch requires a NAME")
    if args.watch:
        return watch_to_the_end(args.services, Watched(name=args.name, where=args.where), json=args.json)
    if args.name is not None:
        print_job(asyncio.run(_look(args.services, args)), json=args.json)
        return 0
    jobs, errors = asyncio.run(_look_at_all(args.services, args))
    if jobs or not errors:
        print_jobs(JobsDocument(jobs=jobs), json=args.json)
    for error in errors:
        print(f"rallypoint: {error}", file=sys.stderr)
    return 1 if errors else 0


async def _look(services: Services, args: argparse.Namespace) -> JobDocument:
    async with services.backend(args.where) as backend:
        return await look(backend, args.name)


async def _look_at_all(services: Services, args: argparse.Namespace) -> tuple[tuple[JobDocument, ...], tuple[str, ...]]:
    async with services.backend(args.where) as backend:
        return await look_at_all(backend)
