"""`rallypoint-agent`: the program inside pods, and torchrun's place by hand."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rallypoint.agent.errors import ConfigError, LostContactError, OrphanedError, StaleError, UsageError
from rallypoint.agent.flags import add_run_flags
from rallypoint.version import __version__
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit

__all__ = ["build_parser", "main"]

_EXITS: tuple[tuple[type[RallypointError], Exit], ...] = (
    (UsageError, Exit.USAGE),
    (StaleError, Exit.STALE),
    (OrphanedError, Exit.ORPHANED),  # before what it is a kind of
    (LostContactError, Exit.LOST_CONTACT),
    (ConfigError, Exit.CONFIG),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (`wire/exits.py`); errors are one line on stderr."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("RALLYPOINT_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s.%(msecs)03d %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    try:
        return int(args.command(args))
    except RallypointError as error:
        print(f"rallypoint-agent: {error}", file=sys.stderr)  # noqa: T201 the one line of a clear error
        return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.JOB_FAILED)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="rallypoint-agent", description="Elastic PyTorch training: agent and coordinator.")
    parser.add_argument("--version", action="version", version=f"rallypoint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run a script by hand, with torchrun's flags"))
    _add_node(commands.add_parser("node", help="be one node of a supervised job"))
    _add_coordinator(commands.add_parser("coordinator", help="be the coordinator of a supervised job"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_run_flags(parser)
    parser.set_defaults(command=_late("run"))


def _add_node(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--node", type=int, required=True, metavar="I", help="slot of the job")
    parser.add_argument("--incarnation", type=int, required=True, metavar="K", help="how often the slot was replaced")
    parser.add_argument("--dir", type=Path, required=True, help="folder of this node")
    parser.set_defaults(command=_late("node"))


def _add_coordinator(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--uid", required=True, help="of the job")
    parser.add_argument("--term", type=int, required=True, metavar="T", help="number of this coordinator within the job")
    parser.add_argument("--status-file", type=Path, required=True, help="where the job's status is published")
    parser.add_argument(
        "--record-file", type=Path, default=None, help="the job's record, which names its supervisor's heartbeat"
    )
    parser.set_defaults(command=_late("coordinator"))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", type=Path, required=True, help="the job's plan.json")
    parser.add_argument("--attempt", type=int, required=True, metavar="N", help="number of the job's attempt")
    parser.add_argument("--secret-file", type=Path, required=True, help="file with the job's secret")
    parser.add_argument("--endpoint-file", type=Path, required=True, help="file that says where the coordinator listens")
    parser.add_argument("--host", default="127.0.0.1", help="address under which others reach this process")


def _late(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the command `name`, which is imported when it is called: --help and a wrong flag cost no transport."""

    def command(args: argparse.Namespace) -> int:
        if name == "run":
            from rallypoint.agent.run import run  # noqa: PLC0415

            return run(args)
        from rallypoint.agent import commands  # noqa: PLC0415

        return commands.node(args) if name == "node" else commands.coordinator(args)

    return command
