"""`rallypoint supervise`: supervise a job in the foreground. The supervisor that `submit` starts runs this command."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.agent.stderr import unstalled
from rallypoint.cli.lookup import find
from rallypoint.cli.options import Commands, Where, add_job_command, spell_command
from rallypoint.cli.services import Services
from rallypoint.report.endings import failure_story, success_line
from rallypoint.report.story import story_of
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.repeated_lines import limit_repeated_lines

if TYPE_CHECKING:
    from rallypoint.backends.turns import Snapshot

__all__ = ["add", "run", "supervise_to_the_end"]

_FAILED = 1
_TERMINATED = 143  # 128 + SIGTERM, as shells count

_LOG_FORMAT = "%(asctime)s  %(levelname)s: %(message)s"

_DESCRIPTION = """\
Run the supervisor of a job until the job ends. Normally, `rallypoint submit`
starts the supervisor in the background. Run this command if the job has no
supervisor, for example after a reboot.

Only one process supervises a job. If another process already supervises the
job, this command waits and takes over when that process ends. After Ctrl-C or
SIGTERM, the job continues without a supervisor. The command ignores SIGHUP.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "supervise", "run the supervisor of a job until the job ends", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "--ignore-outcome",
        action="store_true",
        help="exit with 0 even if the job failed or does not exist, so that a restart policy does not restart the command",
    )
    # For callers that pass credentials, which must not be on a command line.
    parser.add_argument("--credentials-from-stdin", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Supervise the job; return 0 if it succeeded or was deleted, 1 if it failed, 143 after SIGTERM."""
    from rallypoint.backends.contract import JobNotFoundError  # noqa: PLC0415  --help does without the backends

    services = _with_credentials(args.services) if args.credentials_from_stdin else args.services
    try:
        code = supervise_to_the_end(services, args.where, args.name)
    except JobNotFoundError as error:
        if not args.ignore_outcome:
            raise
        print(f"rallypoint: {error}", file=sys.stderr)
        return 0
    return 0 if args.ignore_outcome and code == _FAILED else code


def _with_credentials(services: Services) -> Services:
    """Return the services with the credentials on standard input, which is read once."""
    from rallypoint.backends.credentials import Credentials  # noqa: PLC0415

    credentials = Credentials.from_json(sys.stdin.read())
    # An exec plug-in would inherit standard input.
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    return services.with_credentials(credentials)


def supervise_to_the_end(services: Services, where: Where, name: str) -> int:
    """Supervise in the foreground, with log lines on standard error; return the exit code."""
    unstalled()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_LOG_FORMAT, datefmt="%Y-%m-%d %H:%M:%S")
    limit_repeated_lines()
    latest = _Latest()
    try:
        record = asyncio.run(_supervise(services, where, name, latest))
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        print(_left(where, name, latest.record), file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise
        return _TERMINATED
    if record is None:
        print(f"Job {name} was deleted")
        return 0
    failed = record.phase is Phase.FAILED
    print(failure_story(record) if failed else success_line(story_of(record, None, now=record.last_now)))
    return _FAILED if failed else 0


class _Latest:
    """Keeps the record of the last turn, for the message after an interruption."""

    def __init__(self) -> None:
        self.record: JobRecord | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        self.record = snapshot.record


def _left(where: Where, name: str, record: JobRecord | None) -> str:
    """Return the message about a job whose supervisor was interrupted; `record` is the last known record."""
    again = spell_command(where, "supervise", name)
    if record is None or not record.deletion:
        return f"Job {name} continues without a supervisor; to supervise it again: {again}"
    return f"Job {name} is being deleted; if it still exists, complete the deletion with: {again}"


async def _supervise(services: Services, where: Where, name: str, latest: _Latest) -> JobRecord | None:
    from rallypoint.backends.supervise import supervise  # noqa: PLC0415  --help does without the backends

    _settle_signals(asyncio.current_task())
    async with services.backend(where) as backend:
        await find(backend, name)
        return await supervise(backend, name, holder="rallypoint supervise", on_turn=latest)


def _settle_signals(task: asyncio.Task[JobRecord | None] | None) -> None:
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    # Handled, not ignored: child processes inherit ignored signals.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
