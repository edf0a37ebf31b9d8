"""`rallypoint submit`: start a job and leave a supervisor behind."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.cli.document import json_text
from rallypoint.cli.doors import Doors
from rallypoint.cli.options import Commands, add_command, job_file_options, spell_command, world_words
from rallypoint.cli.supervisors import taken_on
from rallypoint.cli.watching import Watched, watch_to_the_end
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import OrphanPolicy

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint, Stored

__all__ = ["OWNER", "Submitted", "add", "run"]

#: Owner of every job that was submitted by hand.
OWNER = "cli"

_DESCRIPTION = """\
Start the job of FILE and leave a supervisor behind, which sees it to its end.

A job of the same name that is over starts again as its next attempt, with its
checkpoints and all that is remembered of it. With --watch the exit code is 0 when
the job succeeds and 1 when it fails; Ctrl-C leaves the job running.
"""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What a submission did, as `--json` prints it.

    `how`: `submitted`, `restarted` or `adopted`; `size`: nodes and processes, for people; `folder`: of the job.
    """

    version: int = 1
    name: str
    how: str
    size: str
    folder: str
    supervisor_pid: int
    record: JobRecord


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "submit", "start a job", _DESCRIPTION)
    job_file_options(parser)
    parser.add_argument(
        "--orphan-policy",
        choices=[policy.value for policy in OrphanPolicy],
        default=None,
        help="what the job does that nobody has supervised for its lease (fault_tolerance.lease); the job file's own, "
        "or else continue",
    )
    parser.add_argument("--watch", action="store_true", help="look at the job until it is over")
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch a document a line, on each change")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit, tell what happened, and watch if that was asked for."""
    done = asyncio.run(_submit(args))
    if args.watch:
        if not args.json:
            print(told(done, args.home)[0])
        watched = Watched(name=done.name, home=args.home, supervisor_pid=done.supervisor_pid)
        return watch_to_the_end(args.doors, watched, json=args.json)
    print(json_text(done) if args.json else "\n".join(told(done, args.home)))
    return 0


def told(done: Submitted, home: Path | None = None) -> tuple[str, str, str]:
    """Return what happened, where to look, and where it lies; a line each."""
    happened = {
        "submitted": "is submitted",
        "restarted": f"starts again as attempt {done.record.attempt}",
        "adopted": "was there already, without a supervisor, and goes on",
    }[done.how]
    status, logs = (spell_command(home, word, done.name) for word in ("status", "logs"))
    return (
        f"Job {done.name} {happened}: {done.size}, supervisor {done.supervisor_pid}",
        f"Look at it: {status}   {logs}",
        f"Its folder: {done.folder}",
    )


async def _submit(args: argparse.Namespace) -> Submitted:
    from rallypoint.cli.jobfile import read_job  # noqa: PLC0415  pydantic is slow to import, and --help does without

    # It is the job's own setting, so that its file says what holds, and a later submission of that file is the same job.
    chosen = [] if args.orphan_policy is None else [f"fault_tolerance.orphan_policy={args.orphan_policy}"]
    job = read_job(args.file, settings=[*args.settings, *chosen], name=args.name)
    doors: Doors = args.doors
    async with doors.backend(args.home) as backend:
        blueprint = backend.plan(job)
        stored, how = await _take(backend, blueprint)
        pid = doors.spawn_supervisor(job.name, args.home)
        record = await taken_on(backend, stored.record, pid, args.home)
    return Submitted(
        name=job.name,
        how=how,
        size=world_words(stored.plan),
        folder=_folder(blueprint),
        supervisor_pid=pid,
        record=record,
    )


def _folder(blueprint: Blueprint) -> str:
    return next((str(item["path"]) for item in blueprint.objects if item.get("kind") == "folder"), "")


async def _take(backend: Backend, blueprint: Blueprint) -> tuple[Stored, str]:
    """Submit the job, or take on what is there of this name, if it may be taken."""
    from rallypoint.backends.requests import collect, submit_or_adopt  # noqa: PLC0415

    known = await backend.load(blueprint.plan.name)
    if known is not None:
        await _check_may_take(backend, known, blueprint.plan.digest)
        if known.record.finished and not known.record.deletion:
            # Whoever submits by hand knows how it ended, or does not ask; what is wanted is another attempt.
            await collect(backend, known.record.name, owner=OWNER)
    adoption = await submit_or_adopt(backend, blueprint, owner=OWNER)
    return adoption.stored, adoption.how.value


async def _check_may_take(backend: Backend, known: Stored, digest: str) -> None:
    from rallypoint.backends.contract import HeldError, JobExistsError  # noqa: PLC0415

    record = known.record
    if record.deletion or (record.finished and not record.released):
        word = "deleted" if record.deletion else "cleared away"
        print(f"Job {record.name} is still being {word}; waiting ...", file=sys.stderr)
    if record.deletion:
        return
    if record.owner != OWNER and not record.collected_by:
        raise JobExistsError(
            f"job {record.name} belongs to {record.owner}, who has not taken its result yet; "
            f"choose another name (--name), or delete it first (rallypoint delete {record.name})"
        )
    if record.finished or record.digest != digest:
        return
    try:
        async with backend.hold(record.name, holder="rallypoint submit"):
            return
    except HeldError as error:
        raise JobExistsError(
            f"job {record.name} runs already, with this very spec ({error.holder} supervises it); nothing was started. "
            f"Look at it (rallypoint status {record.name}), delete it first (rallypoint delete {record.name}), "
            f"or choose another name (--name)"
        ) from error
