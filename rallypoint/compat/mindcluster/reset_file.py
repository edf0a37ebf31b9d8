"""The reset file that MindCluster's device plugin and its recovery write about the devices of a job. Pure.

It is the ConfigMap `reset-config-JOB`, mounted in every pod of the job (`Scheduling.reset_file`). Each key is optional:

- `RankList`: a list of objects, one per device with an entry: `RankId` (whole number), `Status` (`unrecovered`, `recovered`,
  `failed`, or `fault` if recovery of processes wrote it), `Policy` (text), and fields about the device itself.
- `RetryTime` (restarts of all processes), `FaultFlushing`, `RestartFaultProcess` (true or false), `GracefulExit` (0 or 1),
  `UpdateTime`.

Recovery of processes writes entries with a status only. An entry with the policy `reset` or `restart` is one of graceful fault
tolerance: both cannot be in use at once, so the whole job is rescheduled instead. The other policies (`empty`, `ignore`,
`restart_request`, `free_reset`, `isolate`) require nothing of the job's processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire import sanitize
from rallypoint.wire.codec import WireError

__all__ = ["Entry", "ResetFile", "read_reset"]

#: Policies with which graceful fault tolerance handles a fault itself: it restarts the training or resets the device.
_FOREIGN = frozenset({"reset", "restart"})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One device: the rank that uses it, its status, and its policy; "" without one."""

    rank: int
    status: str = ""
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class ResetFile:
    """The content of the file that concerns the processes of a job.

    Attributes:
        entries: one per device in the list.
        retries: number of restarts of all processes.
        flushing: faults are still being collected.
        graceful_exit: all processes must end.
        in_place: only the faulty process is restarted.
    """

    entries: tuple[Entry, ...] = ()
    retries: int = 0
    flushing: bool = False
    graceful_exit: bool = False
    in_place: bool = False

    @property
    def foreign(self) -> str:
        """Return a description of the first entry of graceful fault tolerance, "" without one."""
        found = next((entry for entry in self.entries if entry.policy in _FOREIGN), None)
        return "" if found is None else f"rank {found.rank} has the policy {found.policy}"


def read_reset(text: str) -> ResetFile:
    """Parse the file; other keys than those above are ignored.

    Raises:
        WireError: the file is malformed; the error names the key, its value and the allowed values.

    """
    try:
        said = sanitize.parse(text)
    except ValueError as error:
        raise WireError("reset file", text[:80], "a JSON object") from error
    if not isinstance(said, dict):
        raise WireError("reset file", said, "a JSON object")
    ranks = said.get("RankList") or []  # Go writes an empty list as null
    if not isinstance(ranks, list):
        raise WireError("RankList", ranks, "a list of objects, one for each device")
    return ResetFile(
        entries=tuple(_entry(f"RankList[{place}]", one) for place, one in enumerate(ranks)),
        retries=_whole("RetryTime", said.get("RetryTime", 0)),
        flushing=_switch("FaultFlushing", said.get("FaultFlushing", False)),
        graceful_exit=_switch("GracefulExit", said.get("GracefulExit", 0)),
        in_place=_switch("RestartFaultProcess", said.get("RestartFaultProcess", False)),
    )


def _entry(path: str, said: object) -> Entry:
    if not isinstance(said, dict):
        raise WireError(path, said, "an object that describes a device")
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
