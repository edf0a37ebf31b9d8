"""What one reading of a supervisor's Lease says about that supervisor. Pure.

A Lease is renewed with the API server's own time, so that one reader can compare it with the server's time of its reading: the
clocks of two machines are never compared. On the machine of the supervisor the process itself can be looked at, too.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.kubernetes.labels import DOMAIN

__all__ = ["PROCESS", "SILENT", "Health", "ProcessMark", "assess", "parse_time", "write_time"]

#: Seconds without a renewal until a supervising process counts as gone.
SILENT = 40.0

#: Annotation of a Lease: which process renews it, with the API server's time in `renewTime`. Leases without it were written by
#: an older version, with the time of their own machine, and one reading of them decides nothing.
PROCESS = f"{DOMAIN}process"


@dataclass(frozen=True, kw_only=True)
class ProcessMark:
    """One process, told apart from every other of its machine, whatever container it is in.

    Attributes:
        boot_id: of the machine's kernel since its start.
        namespace: inode of the process's PID namespace.
        pid: in that namespace.
        start_ticks: when it started, in clock ticks since the machine's boot.
    """

    boot_id: str
    namespace: int
    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.boot_id}/{self.namespace}/{self.pid}/{self.start_ticks}"

    @classmethod
    def parse(cls, text: str) -> ProcessMark | None:
        """Return what `str` wrote, None for anything else."""
        boot_id, *numbers = text.split("/")
        if not boot_id or len(numbers) != 3 or not all(number.isascii() and number.isdecimal() for number in numbers):
            return None
        namespace, pid, start_ticks = map(int, numbers)
        return cls(boot_id=boot_id, namespace=namespace, pid=pid, start_ticks=start_ticks)

    def is_visible_from(self, other: ProcessMark) -> bool:
        """Return whether the process `other` can look at this one: same machine, same boot, same PID namespace."""
        return (self.boot_id, self.namespace) == (other.boot_id, other.namespace)


@dataclass(frozen=True, kw_only=True)
class Health:
    """What is known of a supervisor from one reading of its Lease.

    Attributes:
        gone: it will not renew its Lease again.
        process: the process that renews it, None for a Lease of an older version.
        renewed_at: its last renewal, in seconds since the epoch; 0 where the Lease does not say.
        age: seconds from that renewal to the reading, by the API server's clock; None for a Lease of an older version.
    """

    gone: bool
    process: ProcessMark | None
    renewed_at: float
    age: float | None


def assess(lease: Mapping[str, Any], *, server_time: float, silent: float = SILENT) -> Health:
    """Return what a Lease says of its supervisor.

    Args:
        lease: the object.
        server_time: the API server's clock when it was read, in seconds since the epoch.
        silent: seconds without a renewal until the process counts as gone.
    """
    annotations = lease["metadata"].get("annotations") or {}
    process = ProcessMark.parse(str(annotations.get(PROCESS) or ""))
    renewed_at = parse_time(str((lease.get("spec") or {}).get("renewTime") or ""))
    age = None if process is None or not renewed_at else max(0.0, server_time - renewed_at)
    return Health(gone=age is not None and age >= silent, process=process, renewed_at=renewed_at, age=age)


def write_time(at: float) -> str:
    """Return a time as Kubernetes writes it, with microseconds; `at` is in seconds since the epoch."""
    moment = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Return a time of Kubernetes in seconds since the epoch; 0 for one that is empty, invalid or before 1970.

    Python 3.10 reads only fractions of 3 or 6 digits, and a Go program writes any number of them.
    """
    head, _, fraction = text.removesuffix("Z").partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    try:
        whole = datetime.datetime.fromisoformat(head + fraction[len(digits) :])
        at = whole if whole.tzinfo else whole.replace(tzinfo=datetime.timezone.utc)
        return max(0.0, at.timestamp() + (float(f"0.{digits}") if digits else 0.0))
    except ValueError:
        return 0.0
