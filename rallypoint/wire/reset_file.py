"""MindCluster's reset file, which its device plugin and its recovery write about a job's devices. Pure.

It is the ConfigMap `reset-config-JOB`, as a file in every pod of the job (`PATH`), with these keys; all may be missing:

- `RankList`: a list of objects, one per device that something is told of: `RankId` (whole number), `Status` (`unrecovered`,
  `recovered`, `failed`, or `fault` where recovery of processes wrote it), `Policy` (a word, or none), and more that is about
  devices alone.
- `RetryTime` (how often all processes were restarted), `FaultFlushing`, `RestartFaultProcess` (true or false), `GracefulExit`
  (0 or 1), `UpdateTime`.

Recovery of processes writes entries with a status alone. One with the policy `reset` or `restart` is that of graceful fault
tolerance: both cannot be in use at once, and the whole job is rescheduled instead. The other policies (`empty`, `ignore`,
`restart_request`, `free_reset`, `isolate`) ask nothing of a job's processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire import sanitize
from rallypoint.wire.codec import WireError

__all__ = ["PATH", "Entry", "ResetFile", "read_reset"]

#: Where MindCluster mounts it.
PATH = "/user/restore/reset/config/reset.json"

#: By these graceful fault tolerance handles a fault by itself: it restarts the training, or resets the device.
_FOREIGN = frozenset({"reset", "restart"})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is told of one device: the rank that uses it, its status, and the policy, "" where there is none."""

    rank: int
    status: str = ""
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class ResetFile:
    """The file as far as it concerns a job's processes.

    Attributes:
        entries: one per device that something is told of.
        retries: how often all processes were restarted.
        flushing: faults are still being collected.
        graceful_exit: all processes are to end.
        in_place: only the faulty process is to be restarted.
    """

    entries: tuple[Entry, ...] = ()
    retries: int = 0
    flushing: bool = False
    graceful_exit: bool = False
    in_place: bool = False

    @property
    def foreign(self) -> str:
        """Say which entry is graceful fault tolerance's, "" where none is."""
        found = next((entry for entry in self.entries if entry.policy in _FOREIGN), None)
        return "" if found is None else f"rank {found.rank} has the policy {found.policy}"


def read_reset(text: str) -> ResetFile:
    """Return what the file says; keys that are not named above are passed over.

    Raises:
        WireError: where it is no such file, with the key, its value and what is allowed.

    """
    try:
        said = sanitize.parse(text)
    except ValueError as error:
        raise WireError("", text[:80], "a JSON object") from error
    if not isinstance(said, dict):
        raise WireError("", said, "an object")
    ranks = said.get("RankList") or []  # Go writes an empty list as null
    if not isinstance(ranks, list):
        raise WireError("RankList", ranks, "a list")
    return ResetFile(
        entries=tuple(_entry(f"RankList[{place}]", one) for place, one in enumerate(ranks)),
        retries=_whole("RetryTime", said.get("RetryTime", 0)),
        flushing=_switch("FaultFlushing", said.get("FaultFlushing", False)),
        graceful_exit=_switch("GracefulExit", said.get("GracefulExit", 0)),
        in_place=_switch("RestartFaultProcess", said.get("RestartFaultProcess", False)),
    )


def _entry(path: str, said: object) -> Entry:
    if not isinstance(said, dict):
        raise WireError(path, said, "an object")
    return Entry(
        rank=_whole(f"{path}.RankId", said.get("RankId")),
        status=_text(f"{path}.Status", said.get("Status", "")),
        policy=_text(f"{path}.Policy", said.get("Policy", "")),
    )


def _whole(path: str, value: object) -> int:
    if type(value) is not int:
        raise WireError(path, value, "a whole number")
    return value


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise WireError(path, value, "a string")
    return value


def _switch(path: str, value: object) -> bool:
    if value not in (False, True):  # 0 and 1 are equal to them
        raise WireError(path, value, "true, false, 1 or 0")
    return bool(value)
