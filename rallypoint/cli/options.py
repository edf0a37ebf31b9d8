"""Options that several commands have, and types of arguments."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TypeAlias

from rallypoint.wire.plan import Plan

__all__ = [
    "Commands",
    "HelpFormat",
    "add_command",
    "home_option",
    "job_file_options",
    "natural",
    "spell_command",
    "world_words",
]

#: What `add_subparsers` returns; argparse gives it no public name.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written, and room for our longer words."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)


def add_command(commands: Commands, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a new command."""
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=HelpFormat)
    # Given after the command it wins, absent there it keeps what was given before it.
    home_option(parser, default=argparse.SUPPRESS)
    return parser


def home_option(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Add `--home`."""
    parser.add_argument(
        "--home",
        metavar="DIR",
        type=_folder,
        default=default,
        help="folder of the jobs (default: $RALLYPOINT_HOME, or else ~/.rallypoint)",
    )


def job_file_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which job."""
    parser.add_argument("file", metavar="FILE", type=Path, help="job file, YAML or JSON")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="put VALUE (as YAML) in the place of a field: --set nodes=1:4 --set recovery.max_restarts=10; may be repeated",
    )
    parser.add_argument("--name", help="name of the job, in the place of the file's")


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def natural(text: str) -> int:
    """Return a number that is not negative; argparse tells the error."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a whole number, 0 or more")
    return number


def world_words(plan: Plan) -> str:
    """Return how large a world a plan asks for: `1 to 2 nodes x 4 processes`."""
    low, high = plan.min_nodes, plan.max_nodes
    nodes = f"{low} to {high} nodes" if low != high else "1 node" if high == 1 else f"{high} nodes"
    return f"{nodes} x {plan.nproc_per_node} {'process' if plan.nproc_per_node == 1 else 'processes'}"


def spell_command(home: Path | None, *words: str) -> str:
    """Return a command line to be copied, with the same `--home`."""
    options = () if home is None else ("--home", str(home))
    return shlex.join(("rallypoint", *options, *words))
