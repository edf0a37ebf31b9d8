"""The `rallypoint` command line: its commands, and how errors are printed."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from rallypoint.cli import (
    check,
    delete,
    explain,
    logs,
    manifests,
    orders,
    plan,
    render,
    resize,
    simulate,
    status,
    submit,
    supervise,
    suspend,
)
from rallypoint.cli.options import read_where, site_options
from rallypoint.cli.services import Services
from rallypoint.usage import HelpFormat, UsageParser
from rallypoint.version import __version__
from rallypoint.wire.env import DEBUG
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.printable import PrintableStream

__all__ = ["build_parser", "main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_BROKEN_PIPE = 141  # 128 + SIGPIPE

#: Packages of the extra `client`.
_CLIENT = ("pydantic", "yaml", "rich")

_EPILOG = """\
examples:
  rallypoint submit job.yaml --watch     start a job and wait for its end
  rallypoint status digits               show the nodes and ranks of job digits
  rallypoint logs digits --rank 0 -f     follow the output of rank 0 of job digits
  rallypoint delete digits               delete job digits and everything it created
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = UsageParser(
        prog="rallypoint",
        description="Run elastic PyTorch training jobs.",
        epilog=_EPILOG,
        formatter_class=HelpFormat,
    )
    parser.add_argument("--version", action="version", version=f"rallypoint {__version__}", help="print the version and exit")
    site_options(parser, default=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    jobs = (submit, status, explain, logs, delete, plan, render, simulate, suspend, orders, resize, check, supervise)
    for command in (*jobs, manifests):
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None, *, services: Services | None = None) -> int:
    """Run one command; return its exit code: 0 success, 1 error, 2 wrong usage, 130 interrupted.

    Control characters in the output are escaped, because names, errors and output of a job come from its script.
    """
    with _printable():
        return _run(argv, services)


@contextlib.contextmanager
def _printable() -> Iterator[None]:
    out, err = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def _run(argv: Sequence[str] | None, services: Services | None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    args.services = services or Services()
    try:
        # For commands with a job file, the file may set where the job is.
        args.where = args.place(args, os.environ) if "place" in args else read_where(args, os.environ, parser.error)
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has exited; at its exit, the interpreter must not flush into the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last door: a person gets one message, or with RALLYPOINT_DEBUG all of it
        return _complain(error)
    return code


def _complain(error: Exception) -> int:
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(error)
    print(f"rallypoint: {_message(error)}", file=sys.stderr)
    return 1


def _message(error: Exception) -> str:
    if isinstance(error, RallypointError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _CLIENT:
        return (
            f"this command requires the Python package {error.name}; install it with: "
            "pip install 'airflow-provider-rallypoint[client]'"
        )
    return f"unexpected error: {type(error).__name__}: {error}; set {DEBUG}=1 for a traceback"


if __name__ == "__main__":
    sys.exit(main())
