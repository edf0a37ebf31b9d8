"""The files by which a supervisor of this machine and a host of instances agree: who is to run, who runs, how each ended.

```
hosts/PLACE-GROUP/host-N/        host.json, beside the files of every process with a shim
    units/ROLE-INDEX/A.R.I/      start.json   stop   kill   started.json   exit.json   rank-INDEX.out .err   result.json
```

The supervisor writes `start.json`, and then sends the host a signal; `stop` and `kill` are empty files that ask for an end.
The host writes all else. An instance without `exit.json` whose host has ended is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rallypoint.wire.bounds import PID, WHOLE

__all__ = [
    "BELL",
    "EXIT",
    "HOST",
    "KILL",
    "RESULT",
    "START",
    "STARTED",
    "STOP",
    "UNITS",
    "HostReady",
    "UnitExit",
    "UnitStart",
    "UnitStarted",
    "life_name",
    "read_life",
    "unit_logs",
    "unit_name",
]

#: Names of the files, and of the folder of all units.
HOST, UNITS = "host.json", "units"
START, STOP, KILL, STARTED, EXIT, RESULT = "start.json", "stop", "kill", "started.json", "exit.json", "result.json"

#: Name of the signal that has a host look at its folder.
BELL = "SIGUSR2"

_LIFE = re.compile(r"([1-9]\d{0,8})\.(\d{1,9})\.([1-9]\d{0,8})", re.ASCII)


def unit_name(role: str, index: int) -> str:
    """Return the name of an instance's folder."""
    return f"{role}-{index}"


def life_name(attempt: int, reset: int, incarnation: int) -> str:
    """Return the name of the folder of one life of an instance."""
    return f"{attempt}.{reset}.{incarnation}"


def unit_logs(log_dir: str, job: str) -> Path:
    """Return the folder of the output of all instances of a job that has a `log_dir`; in it, names are as below a host."""
    return Path(log_dir) / job / UNITS


def read_life(name: str) -> tuple[int, int, int] | None:
    """Return attempt, reset and incarnation of a folder's name; None for a name that is none of these."""
    found = _LIFE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


@dataclass(frozen=True, kw_only=True)
class HostReady:
    """`host.json`: the process that looks at its folder when it gets the signal."""

    limits: ClassVar = {"pid": PID, "start_ticks": WHOLE}

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class UnitStart:
    """`start.json`: one life of an instance, and the variables that only the supervisor knows."""

    role: str
    attempt: int
    reset: int
    index: int
    incarnation: int
    env: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class UnitStarted:
    """`started.json`: its process."""

    limits: ClassVar = {"pid": PID, "start_ticks": WHOLE}

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class UnitExit:
    """`exit.json`: how it ended, once nothing of it is left.

    Attributes:
        exit_code: as of `subprocess`, negative for a signal; None where it was not started.
        ended_at: when its process ended, in seconds since the epoch.
        error: the last line that it wrote to stderr.
        result: what it left as its result.
    """

    exit_code: int | None
    reason: str
    ended_at: float
    error: str = ""
    result: Any = None
