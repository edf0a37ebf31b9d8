"""`rallypoint-agent`: the program inside pods, and torchrun's place by hand."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.descriptors import raise_limit
from rallypoint.agent.errors import ConfigError, LostContactError, OrphanedError, StaleError, UsageError
from rallypoint.agent.flags import add_run_flags
from rallypoint.agent.stderr import unstalled
from rallypoint.usage import UsageParser
from rallypoint.version import __version__
from rallypoint.wire.bounds import read_seconds
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit
from rallypoint.wire.repeated_lines import limit_repeated_lines

__all__ = ["build_parser", "main", "uncollected"]

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

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
    raise_limit()
    unstalled()
    try:
        logging.basicConfig(
            stream=sys.stderr,
            level=_log_level(os.environ.get("RALLYPOINT_LOG_LEVEL") or "INFO"),
            format="%(asctime)s.%(msecs)03d %(name)s: %(message)s",
            datefmt="%H:%M:%S",
        )
        limit_repeated_lines()
        return int(args.command(args))
    except RallypointError as error:
        print(f"rallypoint-agent: {error}", file=sys.stderr)  # noqa: T201 the one line of a clear error
        return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.JOB_FAILED)


def _log_level(text: str) -> str:
    level = text.upper()
    if level not in _LOG_LEVELS:
        raise UsageError(f"environment variable RALLYPOINT_LOG_LEVEL {text!r}: not allowed; expected {', '.join(_LOG_LEVELS)}")
    return level


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    # Without abbreviations, since argparse would look for them in the arguments of the script as well.
    parser = UsageParser(
        prog="rallypoint-agent",
        description="Run the agent, the coordinator or another process of a PyTorch job.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rallypoint {__version__}", help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=RunParser)
    _add_run(commands.add_parser("run", help="run a training script with torchrun's options"))
    _add_node(commands.add_parser("node", help="run the agent of one node of a job that has a supervisor"))
    _add_coordinator(commands.add_parser("coordinator", help="run the coordinator of a job that has a supervisor"))
    _add_host(commands.add_parser("host", help="run instances of the simple roles of a job that has a supervisor"))
    _add_directory(commands.add_parser("roles-directory", help="serve the addresses of all instances of a job's roles"))
    _add_server(commands.add_parser("server", help="run a server in a pod until all driver roles of the job have succeeded"))
    return parser


def _add_run(parser: RunParser) -> None:
    add_run_flags(parser)
    parser.set_defaults(command=_late("run"))


def _add_node(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--node", type=int, required=True, metavar="I", help="number of this node in the job, starting at 0")
    parser.add_argument(
        "--incarnation",
        type=int,
        required=True,
        metavar="K",
        help="number of this start of the node: 1 for the first start, 2 for the first replacement",
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder for the files of this node's agent")
    parser.add_argument(
        "--shm",
        type=Path,
        default=None,
        help="folder in shared memory for the training state of the workers (default: the folder in --dir)",
    )
    parser.add_argument(
        "--output",
        choices=("files", "pod"),
        default="files",
        help="where the output of the workers goes: files (log files) or pod (standard output of the pod)",
    )
    found = parser.add_mutually_exclusive_group(required=True)
    _add_endpoint_file(found, "file from which the agent reads the coordinator's address")
    found.add_argument(
        "--listen", type=_port, default=None, metavar="PORT", help="port at which this agent receives the coordinator's address"
    )
    parser.set_defaults(command=_late("node"))


def _add_coordinator(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--uid", required=True, help="UID of the job")
    parser.add_argument(
        "--term",
        type=int,
        required=True,
        metavar="T",
        help="number of this coordinator: 1 for the first coordinator of the job, 2 for its successor",
    )
    status = parser.add_mutually_exclusive_group(required=True)
    status.add_argument(
        "--status-file", type=Path, default=None, help="file to which the coordinator writes the status of the job"
    )
    status.add_argument(
        "--status-configmap",
        type=_place,
        default=None,
        metavar="NAMESPACE/NAME",
        help="ConfigMap to which the coordinator writes the status of the job",
    )
    parser.add_argument(
        "--progress-period",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="time between two writes of --status-file while only the progress of the training changes (default: 1)",
    )
    _add_endpoint_file(parser, "file to which the coordinator writes its address")
    parser.add_argument("--record-file", type=Path, default=None, help="file that contains the record of the job")
    _add_cluster_options(parser)
    parser.set_defaults(command=_late("coordinator"))


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("options with --status-configmap")
    cluster.add_argument(
        "--record-configmap",
        type=_place,
        default=None,
        metavar="NAMESPACE/NAME",
        help="ConfigMap that contains the record of the job",
    )
    cluster.add_argument(
        "--status-dir",
        type=Path,
        default=None,
        help="folder to which the coordinator writes the status if it cannot write the ConfigMap",
    )
    cluster.add_argument(
        "--known-status",
        type=Path,
        default=None,
        help="file with the last status of the job, which the coordinator reads if the API server is unreachable",
    )


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", type=Path, required=True, help="file that contains the plan of the job")
    parser.add_argument("--record-file", type=Path, required=True, help="file that contains the record of the job")
    parser.add_argument("--uid", required=True, help="UID of the job")
    parser.add_argument("--dir", type=Path, required=True, help="folder for the files of the instances that this process runs")
    parser.set_defaults(command=_late("host"))


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument(
        "--secret-file", type=Path, required=True, help="file with the secret that protects calls between roles"
    )
    parser.add_argument(
        "--tls", type=Path, default=None, metavar="DIR", help="folder with the TLS files ca.crt, tls.crt and tls.key"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address at which the role directory listens")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=_port, default=0, help="port at which the role directory listens")
    where.add_argument(
        "--listener", type=int, default=None, metavar="FD", help="file descriptor of a socket that listens already"
    )
    parser.set_defaults(command=_late("roles-directory"))


def _add_server(parser: RunParser) -> None:
    parser.add_argument(
        "--until",
        type=Path,
        required=True,
        metavar="FILE",
        help="file that is empty at first; once it has content, the server is stopped",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="seconds that the server has to exit after SIGTERM, before SIGKILL (default: 30)",
    )
    # What follows the options is the command of the server.
    parser.takes_script = True
    parser.usage = "rallypoint-agent server --until FILE [--grace SECONDS] COMMAND [ARGUMENT ...]"
    parser.set_defaults(command=_late("server"))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", type=Path, required=True, help="file plan.json, which contains the plan of the job")
    parser.add_argument(
        "--attempt", type=int, required=True, metavar="N", help="number of this attempt of the job, starting at 1"
    )
    parser.add_argument("--secret-file", type=Path, required=True, help="file that contains the secret of the job")
    parser.add_argument(
        "--tls", type=Path, default=None, metavar="DIR", help="folder with the TLS files ca.crt, tls.crt and tls.key"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address at which other nodes reach this process")


def _add_endpoint_file(parser: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, text: str) -> None:
    parser.add_argument("--endpoint-file", type=Path, default=None, help=text)


def _port(text: str) -> int:
    """Return a port that may be asked for; 0 would be one that nobody else knows."""
    port = int(text) if text.isdigit() else 0
    if not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"port {text!r} is not allowed; expected 1 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = read_seconds(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a number of seconds, 0 or more")
    return seconds


def _place(text: str) -> Namespaced:
    try:
        return Namespaced.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _require_home(args: argparse.Namespace) -> None:
    """Raise `UsageError` unless a coordinator is told where it lives, in one way and not in both."""
    shared, cluster = ["endpoint_file", "record_file", "progress_period"], ["status_dir", "record_configmap", "known_status"]
    if args.status_configmap is None:
        way, ours, others = "--status-file", shared, cluster
    else:
        way, ours, others = "--status-configmap", cluster, shared
    if getattr(args, ours[0]) is None:
        raise UsageError(f"flag {_flag(ours[0])}: is missing; the flag {way} requires it")
    for name in others:
        if getattr(args, name) is not None:
            raise UsageError(f"flag {_flag(name)}: is not allowed with the flag {way}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _late(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the command `name`, which is imported when it is called: --help and a wrong flag cost no transport."""

    def command(args: argparse.Namespace) -> int:
        if name == "run":
            with uncollected():
                from rallypoint.agent.run import run  # noqa: PLC0415

            return run(args)
        if name == "roles-directory":
            from rallypoint.agent.directory import roles_directory  # noqa: PLC0415

            return roles_directory(args)
        if name == "server":
            from rallypoint.agent.server import server  # noqa: PLC0415

            return server(args)
        if name == "node":
            with uncollected():
                from rallypoint.agent.commands import node  # noqa: PLC0415

            return node(args)
        if name == "host":
            with uncollected():
                from rallypoint.agent.units.host import host  # noqa: PLC0415

            return host(args)
        _require_home(args)
        with uncollected():
            from rallypoint.agent.coordinator.coordinating import coordinator  # noqa: PLC0415

        return coordinator(args)

    return command


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave the collector alone while much is imported, and out of its sight what there is by then.

    An agent imports some hundred classes before it starts a worker: a sixth of that time went to looking for garbage among
    them. A collector that was switched off stays so.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()
