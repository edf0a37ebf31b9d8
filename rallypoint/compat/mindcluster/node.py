"""The node agent's part of the profile `mindcluster`: reset file, and workers that must be replaced."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rallypoint.compat.mindcluster.in_place import is_same_fault
from rallypoint.compat.mindcluster.scheduling import strategies
from rallypoint.compat.mindcluster.strategy import Strategy
from rallypoint.wire import sanitize
from rallypoint.wire.codec import WireError
from rallypoint.wire.plan import Plan, Scheduling

__all__ = ["Entry", "Node", "ResetFile", "ResetWatch", "create", "read_reset"]

log = logging.getLogger("rallypoint.agent")

#: The agent reads at most this many bytes of the file.
_MOST = 1 << 20

#: Policies with which graceful fault tolerance handles a fault itself: it restarts the training or resets the device.
_FOREIGN = frozenset({"reset", "restart"})


class ResetWatch:
    """Reads one file each time it has changed; "" is no file.

    The agent looks for every report, so a fault that it reports is already in the file. A missing file is an empty one. If the
    file cannot be read, for example while it is written, the previous content stays in force and the log has a warning.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._seen: tuple[int, int, int] | None = None
        self._known = ResetFile()

    def foreign(self) -> str:
        """Return the entry of graceful fault tolerance, "" without one."""
        return self._look().foreign

    def _look(self) -> ResetFile:
        if self._path is None:
            return self._known
        try:
            found = self._path.stat()
        except OSError:
            self._seen, self._known = None, ResetFile()
            return self._known
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if mark != self._seen:
            self._seen = mark
            self._read(self._path)
        return self._known

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8") as file:
                self._known = read_reset(file.read(_MOST))
        except (OSError, WireError, UnicodeDecodeError) as error:
            log.warning(
                "the agent cannot read the MindCluster reset file %s: %s; it uses the previous content of the file", path, error
            )


class Node:
    """`rallypoint.agent.node.profile.NodeRules` of a plan."""

    def __init__(self, plan: Plan) -> None:
        settings = plan.scheduling or Scheduling()
        self._reset = ResetWatch("" if plan.scheduling is None else settings.reset_file)
        self._strategies = frozenset(strategies(plan.scheduling))
        #: By local rank, the last step and the time of the last step that raised by itself.
        self._raised: dict[int, tuple[int | None, float]] = {}

    def tolerance(self) -> str:
        """Return the entry of graceful fault tolerance in the reset file, "" without one."""
        return self._reset.foreign()

    def keeps(self) -> bool:
        """Return whether workers may continue after a fault of another worker or node."""
        return bool(self._strategies - {Strategy.DUMP, Strategy.EXIT})

    def replaces_raised(self, local_rank: int, step: int | None, now: float) -> bool:
        """Return whether a worker whose step raised must be replaced; the coordinator decides the same."""
        last = self._raised.get(local_rank)
        self._raised[local_rank] = (step, now)
        again = last is not None and is_same_fault(last[0], step, now - last[1])
        return again or Strategy.RETRY not in self._strategies


def create(plan: Plan) -> Node:
    """Return the rules for an agent."""
    return Node(plan)


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

    It is the ConfigMap `reset-config-JOB`, mounted in every pod of the job (`Scheduling.reset_file`). Each key is optional:

    - `RankList`: a list of objects, one per device with an entry: `RankId` (whole number), `Status` (`unrecovered`,
      `recovered`, `failed`, or `fault` if recovery of processes wrote it), `Policy` (text), and fields about the device itself.
    - `RetryTime` (restarts of all processes), `FaultFlushing`, `RestartFaultProcess` (true or false), `GracefulExit` (0 or 1),
      `UpdateTime`.

    Recovery of processes writes entries with a status only. An entry with the policy `reset` or `restart` is one of graceful
    fault tolerance: both cannot be in use at once, so the whole job is rescheduled instead. The other policies (`empty`,
    `ignore`, `restart_request`, `free_reset`, `isolate`) require nothing of the job's processes.
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
