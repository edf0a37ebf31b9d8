"""`rallypoint submit`: start a job and its supervisor."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import getpass
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import argument_options, name_option, place_of
from rallypoint.cli.document import json_text
from rallypoint.cli.options import Commands, Where, add_job_command, job_file_options, spell_command, world_words
from rallypoint.cli.supervise import supervise_to_the_end
from rallypoint.cli.supervisors import Leaving, Left, Way, leaving, taken_on, way_options
from rallypoint.cli.watching import Watched, watch_to_the_end
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.usage import ADVANCED_OPTIONS
from rallypoint.wire.plan import OrphanPolicy

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint, Stored

__all__ = ["OWNER", "Submitted", "add", "run"]

#: Owner of every job that was submitted from the command line.
OWNER = "cli"

_ATTACHED = "attached"

_DESCRIPTION = """\
Start the job that FILE describes, and a supervisor that manages the job until
the job ends. The supervisor is a background process of this machine or, on
Kubernetes, a small pod.

If a finished job has the same name, a new attempt of that job starts, with its
checkpoints and history. If the same job is already running, the command starts
nothing.
With --watch, the exit code is 0 if the job succeeds and 1 if the job fails.
Ctrl-C ends the command, and the job continues.
"""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """Result of a submission, as `--json` prints it.

    Attributes:
        how: `submitted`, `restarted`, `adopted`, or `attached` to a job that runs and has a supervisor.
        size: nodes and processes, as text.
        folder: of the job, on this machine; "" elsewhere.
        configmap: that holds the job, as NAMESPACE/NAME, on Kubernetes; "" elsewhere.
        ledger: Ray namespace whose ledger holds the job, on Ray; "" elsewhere.
        supervise: where the supervisor runs (a value of --supervise); "" for a job that was already running.
        held_by: description of the supervisor of such a job; else "".
        supervisor_pid, supervisor_pod: the supervisor that was started, a process of this machine or a pod; else 0 and "".
    """

    version: int = 1
    name: str
    how: str
    size: str
    folder: str
    configmap: str = ""
    ledger: str = ""
    supervise: str = Way.PROCESS.value
    supervisor_pid: int
    supervisor_pod: str = ""
    held_by: str = ""
    record: JobRecord


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "submit", "start a job", _DESCRIPTION)
    parser.usage = "%(prog)s [options] FILE"
    job_file_options(parser)
    name_option(parser, "name of the job; overrides the name in FILE")
    argument_options(parser)
    parser.group(ADVANCED_OPTIONS).add_argument(
        "--orphan-policy",
        choices=[policy.value for policy in OrphanPolicy],
        default=None,
        help="reaction of the job if its supervisor is lost: continue or stop (default: value in FILE, otherwise continue)",
    )
    parser.add_argument("--watch", action="store_true", help="show each change of the job's status until the job ends")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; with --watch, one for each change of the job"
    )
    way_options(parser)
    parser.set_defaults(run=run, place=place_of, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Submit the job, print the result, and watch or supervise the job if requested."""
    plan = leaving(args)
    done, left = asyncio.run(_submit(args, plan))
    here = plan.way is Way.HERE and done.how != _ATTACHED
    if args.watch:
        if not args.json:
            print(told(done, args.where)[0])
        watched = Watched(name=done.name, where=args.where, left=left, here=here)
        return watch_to_the_end(args.services, watched, json=args.json)
    print(json_text(done) if args.json else "\n".join(told(done, args.where)), flush=True)
    return supervise_to_the_end(args.services, args.where, done.name) if here else 0


def told(done: Submitted, where: Where) -> tuple[str, ...]:
    """Return lines about the submission, the commands to watch the job, and its place."""
    happened = {
        "submitted": "submitted",
        "restarted": f"started again as attempt {done.record.attempt}",
        "adopted": "already exists; it had no supervisor and continues now",
        _ATTACHED: "is already running, and nothing was started",
    }[done.how]
    status, logs = (spell_command(where, word, done.name) for word in ("status", "logs"))
    return (
        f"Job {done.name} {happened}: {done.size}{_supervisor(done)}",
        f"Watch it: {status}   {logs}",
        _whereabouts(done),
        *_still_to_do(done, where),
    )


def _whereabouts(done: Submitted) -> str:
    if done.ledger:
        return f"Record: ledger of the Ray namespace {done.ledger}"
    return f"Folder: {done.folder}" if done.folder else f"Record: ConfigMap {done.configmap}"


def _supervisor(done: Submitted) -> str:
    if done.held_by:
        return f" (supervisor: {done.held_by})"
    if done.supervisor_pid:
        return f", supervisor {done.supervisor_pid}"
    return f", supervisor pod {done.supervisor_pod}" if done.supervisor_pod else ""


def _still_to_do(done: Submitted, where: Where) -> Iterator[str]:
    if done.supervise == Way.NONE:
        yield f"The job has no supervisor yet; start one: {spell_command(where, 'supervise', done.name)}"
    elif done.supervise == Way.POD and done.record.phase is Phase.EMPTY:
        yield f"The supervisor pod {done.supervisor_pod} has not started yet; it waits for a node or for its image"


async def _submit(args: argparse.Namespace, plan: Leaving) -> tuple[Submitted, Left]:
    from rallypoint.cli.work import drawn  # noqa: PLC0415  pydantic is slow to import, and --help does without
    from rallypoint.job.secret_env import env_warnings  # noqa: PLC0415

    async with args.services.backend(args.where) as backend:
        blueprint = drawn(backend, args, orphan_policy=args.orphan_policy)
        await plan.check(blueprint)
        for warning in (*blueprint.warnings, *env_warnings(blueprint.job)):
            print(f"rallypoint: warning: {warning}", file=sys.stderr)
        stored, how, held_by = await _take(backend, blueprint, args.where)
        left = Left() if held_by else await plan.leave(blueprint.plan.name)
        record = await taken_on(backend, stored.record, left, args.where)
    folder, configmap = _place(blueprint)
    done = Submitted(
        name=blueprint.plan.name,
        how=how,
        size=world_words(stored.plan),
        folder=folder,
        configmap=configmap,
        ledger=next((str(item["namespace"]) for item in blueprint.objects if item.get("kind") == "Ledger"), ""),
        supervise="" if held_by else plan.way.value,
        held_by=held_by,
        supervisor_pid=left.pid,
        supervisor_pod=left.pod,
        record=record,
    )
    return done, left


def _place(blueprint: Blueprint) -> tuple[str, str]:
    """Return the folder of a job, or its ConfigMap; "" for the one that it does not have."""
    first = blueprint.objects[0]
    if first.get("kind") == "ConfigMap":
        return "", f"{first['metadata']['namespace']}/{first['metadata']['name']}"
    return next((str(item["path"]) for item in blueprint.objects if item.get("kind") == "folder"), ""), ""


async def _take(backend: Backend, blueprint: Blueprint, where: Where) -> tuple[Stored, str, str]:
    """Submit the job, or adopt the existing job of this name if that is allowed; the same job that already runs continues."""
    from rallypoint.backends.requests import collect, submit_or_adopt  # noqa: PLC0415

    known = await backend.load(blueprint.plan.name)
    if known is not None:
        if held_by := await _runs_under(backend, known, blueprint.plan.digest, where):
            return known, _ATTACHED, held_by
        if known.record.finished and not known.record.deletion:
            # A user who submits a finished job again wants another attempt.
            await collect(backend, known.record.name, owner=OWNER)
    blueprint = dataclasses.replace(blueprint, claimant=_claimant())
    adoption = await submit_or_adopt(backend, blueprint, owner=OWNER)
    return adoption.stored, adoption.how.value, ""


def _claimant() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a container without a user name for its uid
        return f"user {os.getuid()}"


async def _runs_under(backend: Backend, known: Stored, digest: str, where: Where) -> str:
    """Return the supervisor of a running job, "" if the job may be submitted; raises `JobExistsError`."""
    from rallypoint.backends.contract import HeldError, JobExistsError  # noqa: PLC0415

    record = known.record
    if record.deletion or (record.finished and not record.released):
        word = "deleted" if record.deletion else "cleaned up"
        print(f"Job {record.name} is still being {word}; waiting ...", file=sys.stderr)
    if record.deletion:
        return ""
    if record.owner != OWNER and not record.collected_by:
        raise JobExistsError(
            f"job {record.name} belongs to {record.owner}, which has not read the job's result yet; choose another "
            f"name (--name), or delete the job first ({spell_command(where, 'delete', record.name)})"
        )
    if record.finished or record.digest != digest:
        return ""
    try:
        async with backend.hold(record.name, holder="rallypoint submit"):
            return ""
    except HeldError as error:
        return error.holder or "unknown"
