"""Bounds of what single flags of a run may say. Pure.

Each function raises `UsageError` naming the flag, the value and what is allowed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from rallypoint.agent.errors import UsageError

__all__ = [
    "SHUTDOWN_TIMEOUT",
    "check_level",
    "exit_grace",
    "extension",
    "hang_downtime",
    "interval",
    "node_unit",
    "number",
    "preload",
    "replica_every",
    "shutdown_timeout",
    "slot",
    "standbys",
]

#: torchrun's seconds from SIGTERM to SIGKILL.
SHUTDOWN_TIMEOUT = 30.0

#: The longest `exit_grace` in seconds, as in a job document.
_EXIT_GRACE = 86400


def node_unit(unit: int, low: int, high: int) -> int:
    """Return the unit, which must divide both bounds of the world."""
    if unit < 1:
        raise UsageError(f"--node-unit {unit}: not allowed; expected a number of nodes, 1 or more")
    if low % unit or high % unit:
        raise UsageError(f"--node-unit {unit}: not allowed; expected a divisor of both bounds of --nnodes {low}:{high}")
    return unit


def check_level(args: argparse.Namespace) -> int:
    """Return the level of the node check, however it was asked for."""
    level = max(int(args.precheck), 1 if args.network_check else 0, 2 if args.comm_perf_test else 0)
    if args.exclude_straggler and not level:
        raise UsageError("--exclude-straggler: requires a node check; add --precheck 1 or --precheck 2")
    return level


def hang_downtime(minutes: float) -> float:
    """Return seconds."""
    if not 0 <= minutes < float("inf"):
        raise UsageError(f"--hang-downtime {minutes:g}: not allowed; expected minutes, 0 or more")
    return minutes * 60.0


def extension(text: str) -> str:
    """Return the name of a class, `MODULE::CLASS`, or nothing."""
    if text and not re.fullmatch(r"[A-Za-z_][\w.]*::[A-Za-z_]\w*", text):
        raise UsageError(f"--dynamic-failover-extension {text}: not allowed; expected MODULE::CLASS")
    return text


def interval(seconds: float) -> float:
    """Return seconds, more than 0."""
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--monitor-interval {seconds:g}: not allowed; expected seconds, more than 0")
    return seconds


def standbys(number: int | None) -> int | None:
    """Return the number, or None where nobody said one."""
    if number is not None and number < 0:
        raise UsageError(f"--standby {number}: not allowed; expected a number of standbys, 0 or more")
    return number


def replica_every(args: argparse.Namespace) -> int:
    """Return of which steps snapshots are kept on another node, too."""
    every, limit = int(args.replica_every), int(args.replica_limit)
    if every < 0 or every == 1:
        raise UsageError(f"--replica-every {every}: not allowed; expected 0 (off), or 2 or more steps")
    if limit < 0 or bool(every) != bool(limit):
        raise UsageError(
            f"--replica-limit {limit}: not allowed; expected 1 byte or more if --replica-every is set, otherwise 0"
        )
    return every


def preload(text: str) -> tuple[str, ...]:
    """Return the names of modules, separated by commas."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    wrong = next((name for name in names if not all(part.isidentifier() for part in name.split("."))), None)
    if wrong is not None:
        raise UsageError(f"--preload {wrong}: not allowed; expected names of modules, such as numpy,my.package")
    return names


def shutdown_timeout(given: float | None, env: Mapping[str, str]) -> float:
    """Return the seconds from SIGTERM to SIGKILL: of the flag, of torchrun's variable, or its default."""
    if given is None:
        text = env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
        given = number(text, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT") if text else SHUTDOWN_TIMEOUT
    if not 0 <= given < float("inf"):
        raise UsageError(f"--shutdown-timeout {given:g}: not allowed; expected 0 or more seconds")
    return given


def exit_grace(seconds: float) -> float:
    """Return the seconds; 0 is off."""
    if not 0 <= seconds <= _EXIT_GRACE:
        raise UsageError(f"--exit-grace {seconds:g}: not allowed; expected seconds, 0 to {_EXIT_GRACE}")
    return seconds


def slot(node_rank: int, high: int) -> int:
    """Return the slot of this node among `high`."""
    if not 0 <= node_rank < high:
        raise UsageError(f"--node-rank {node_rank}: not allowed; expected 0 to {high - 1}")
    return node_rank


def number(text: str, where: str) -> float:
    """Return the seconds, 0 or more, that the environment variable `where` contains."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"environment variable {where} {text!r}: not allowed; expected seconds, 0 or more")
    return seconds
