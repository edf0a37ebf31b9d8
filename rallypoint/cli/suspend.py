"""`rallypoint suspend` and `rallypoint resume`: free the resources of a job, and continue later from its last checkpoint."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from rallypoint.cli.lookup import find, supervisor_of
from rallypoint.cli.options import Commands, Where, add_job_command, spell_command
from rallypoint.cli.orders import add_timeout, ask
from rallypoint.cli.services import Services

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["add", "nobody", "run"]

_SUSPEND = """\
Stop all processes of a job and keep its record, until the job is resumed. While
the job is suspended, the timeouts of the job do not run, and the suspension does
not count as a restart.

The command returns at once, and the job's supervisor stops the processes. A
training script that calls rallypoint.training.stop_requested can save a
checkpoint before it exits. Suspending a suspended job has no effect; suspending
a finished job is an error.
"""

_RESUME = """\
Restart a suspended job from its last checkpoint, or continue a paused job.

For a suspended job, the command returns at once, and the job's supervisor starts
the processes of the job. For a paused job, the workers continue, and the command
waits for the replies of the workers.
"""


def add(commands: Commands) -> None:
    """Add the two commands."""
    for name, summary, description in (
        ("suspend", "stop all processes of a job until the job is resumed", _SUSPEND),
        ("resume", "restart a suspended job, or continue a paused job", _RESUME),
    ):
        parser = add_job_command(commands, name, summary, description)
        parser.add_argument("name", metavar="NAME", help="name of the job")
        if name == "resume":
            add_timeout(parser)
        parser.set_defaults(run=run, suspend=name == "suspend")


def run(args: argparse.Namespace) -> int:
    """Store the request, and print which process will carry it out; for a paused job, print the replies of its ranks."""
    lines, done = asyncio.run(_wish(args.services, args))
    print("\n".join(lines))
    return 0 if done else 1


async def _wish(services: Services, args: argparse.Namespace) -> tuple[list[str], bool]:
    from rallypoint.backends.requests import request_resumption, request_suspension  # noqa: PLC0415
    from rallypoint.backends.worker_commands import may_be_paused  # noqa: PLC0415  --help does without

    async with services.backend(args.where) as backend:
        before = (await find(backend, args.name)).record
        if not args.suspend and not before.suspend and not before.finished and may_be_paused(before):
            return await ask(backend, args.name, "resume", timeout=args.timeout)
        await (request_suspension if args.suspend else request_resumption)(backend, args.name)
        told = _told(args.name, args.where, asked=args.suspend, fresh=before.suspend is not args.suspend)
        return [told, *await nobody(backend, args.name, args.where)], True


def _told(name: str, where: Where, *, asked: bool, fresh: bool) -> str:
    if asked:
        word = "is being suspended" if fresh else "is already being suspended"
        return f"Job {name} {word}; to resume it: {spell_command(where, 'resume', name)}"
    return f"Job {name} is being resumed" if fresh else f"Job {name} is not suspended; nothing was changed"


async def nobody(backend: Backend, name: str, where: Where) -> list[str]:
    """Yield a hint if the job has no supervisor that could carry out the request."""
    stored = await backend.load(name)
    if stored is None:
        return []
    supervisor = await supervisor_of(backend, stored.record)
    if supervisor is not None and supervisor.alive is not False:
        return []
    return [f"The job has no supervisor, so the request waits; start one: {spell_command(where, 'supervise', name)}"]
