"""`rallypoint check`: check the nodes of a job, or N nodes, without training on them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.cli.document import json_text
from rallypoint.cli.options import Commands, add_job_command, set_option
from rallypoint.cli.plain import table_lines
from rallypoint.cli.services import Services
from rallypoint.cli.tables import check_table
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.check import NodeCheck, NodeVerdict, measured
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint

__all__ = ["CheckFailedError", "add", "run"]

_OWNER = "cli"

_DESCRIPTION = """\
Test nodes before training on them. Each node runs a compute benchmark and
exchanges data with another node. If a node fails or is slow, the check tests
the nodes again in other pairs, to find out which node is at fault. With FILE,
the check uses the number of nodes, the resources, the image and the environment
in FILE. With --nodes N, the check starts N node processes on this machine or,
with --image, N pods on a Kubernetes cluster.

The command waits until all nodes have started. When the check ends, the command
deletes everything it created. The exit code is 0 if no node is faulty, and 1 if
a node is faulty (with --exclude-straggler also if a node is slow).
"""


class CheckFailedError(RallypointError):
    """The nodes could not be checked."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "check", "test nodes before training on them", _DESCRIPTION)
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="job file whose nodes are tested, YAML or JSON")
    set_option(parser, "a field of FILE to a YAML value, as in --set nodes=4")
    parser.add_argument("--nodes", metavar="N[:MAX]", help="number of nodes to test; overrides the number in FILE")
    parser.add_argument(
        "--nproc-per-node",
        metavar="K",
        type=int,
        default=1,
        help="number of test processes on each node (default: 1); not allowed with FILE",
    )
    parser.add_argument(
        "--image",
        help="container image of the test pods, in which airflow-provider-rallypoint[agent] is installed; "
        "not allowed with FILE",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(1, 2),
        default=1,
        help="1 (default): test pairs of nodes; 2: test pairs of nodes, then all good nodes together",
    )
    parser.add_argument("--all-pairs", action="store_true", help="test every possible pair of nodes")
    parser.add_argument(
        "--timeout", metavar="DURATION", help="time limit for each series of tests, such as 90s or 10m (default: 5m)"
    )
    parser.add_argument("--exclude-straggler", action="store_true", help="exit with 1 also if a node is slow (a straggler)")
    parser.add_argument(
        "--svg", metavar="OUT", type=Path, help="SVG file to which the command writes a picture of the bandwidth between nodes"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Check the nodes and print the result; return 0 if no node is faulty, else 1."""
    if (args.file is None) is (args.nodes is None) and args.file is None:
        args.usage_error("a FILE or --nodes N is required")
    if args.file is not None and (args.image is not None or args.nproc_per_node != 1):
        args.usage_error("--image and --nproc-per-node cannot be used with FILE; use --set")
    found = asyncio.run(_check(args.services, args))
    if args.svg is not None:
        _draw(args.svg, found)
    print(json_text(found) if args.json else "\n".join(lines(found)))
    bad = [NodeVerdict.FAULT, NodeVerdict.UNKNOWN, *([NodeVerdict.STRAGGLER] if args.exclude_straggler else [])]
    return int(any(found.named(verdict) for verdict in bad))


def lines(found: NodeCheck) -> Iterator[str]:
    """Yield the result as lines of text."""
    yield from table_lines(check_table(found))
    failed = [link for link in found.links if link.bandwidth == 0]
    yield ""
    yield f"{found.count} nodes, {found.rounds} rounds, {len(found.links)} groups, {len(failed)} of them failed"
    yield from measured(found)


def _draw(path: Path, found: NodeCheck) -> None:
    from rallypoint.report.check_picture import picture  # noqa: PLC0415  as above

    try:
        path.write_text(picture(found), encoding="utf-8")
    except OSError as error:
        raise RallypointError(f"--svg {path}: cannot write the file: {error.strerror}") from error


async def _check(services: Services, args: argparse.Namespace) -> NodeCheck:
    from rallypoint.backends.requests import delete, submit_or_adopt  # noqa: PLC0415
    from rallypoint.backends.supervise import supervise  # noqa: PLC0415
    from rallypoint.report.check_picture import read_check  # noqa: PLC0415  as above

    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with services.backend(args.where) as backend:
        blueprint = _drawn(backend, args)
        name = blueprint.plan.name
        await submit_or_adopt(backend, blueprint, owner=_OWNER, fresh=True)
        print(f"Checking {blueprint.plan.max_nodes} nodes as job {name} ...", file=sys.stderr)
        try:
            record = await supervise(backend, name, holder="rallypoint check")
        finally:
            # The job of a check is always deleted; if that fails now, the result of the check is still printed.
            with contextlib.suppress(RallypointError):
                await asyncio.shield(delete(backend, name, holder="rallypoint check"))
    if record is None:
        raise CheckFailedError(f"job {name} was deleted before its nodes were checked; run the check again")
    if record.phase is not Phase.SUCCEEDED:
        raise CheckFailedError(_story(record))
    return read_check(record.result)


def _drawn(backend: Backend, args: argparse.Namespace) -> Blueprint:
    from rallypoint.cli.jobfile import with_settings  # noqa: PLC0415  brings pydantic
    from rallypoint.job import JobError, load_job  # noqa: PLC0415
    from rallypoint.job.check import as_check, bare_check  # noqa: PLC0415
    from rallypoint.job.document import read_document  # noqa: PLC0415
    from rallypoint.job.spelling import spell  # noqa: PLC0415

    here = args.where.site.on_this_machine
    document: Any
    if args.file is None:
        name = f"check-{secrets.token_hex(3)}"
        document = {**bare_check(args.nodes, args.nproc_per_node, name=name), **({"image": args.image} if args.image else {})}
    else:
        name, document = None, with_settings(read_document(args.file), args.settings)
        if not isinstance(document, dict):
            raise CheckFailedError(f"{args.file}: not a job file; expected a mapping with name and entrypoint")
        document = dict(spell(document).document)  # the settings of the check override those of the file
        document = document if args.nodes is None else {**document, "nodes": args.nodes}
    made = as_check(document, level=args.level, all_pairs=args.all_pairs, timeout=args.timeout, name=name)
    try:
        base = Path.cwd() if args.file is None else args.file.parent
        return backend.plan(load_job(made, base=base, based=here))
    except JobError as error:
        raise error.with_source(str(args.file or "--nodes")) from None


def _story(record: JobRecord) -> str:
    from rallypoint.report.endings import failure_story  # noqa: PLC0415  as above

    return failure_story(record)
