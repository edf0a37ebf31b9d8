"""The node agent's part of the profile `mindcluster`: reset file, and workers that must be replaced."""

from __future__ import annotations

import logging
from pathlib import Path

from rallypoint.compat.mindcluster.in_place import is_same_fault
from rallypoint.compat.mindcluster.reset_file import ResetFile, read_reset
from rallypoint.compat.mindcluster.scheduling import strategies
from rallypoint.compat.mindcluster.strategy import Strategy
from rallypoint.wire.codec import WireError
from rallypoint.wire.plan import Plan, Scheduling

__all__ = ["Node", "ResetWatch", "create"]

log = logging.getLogger("rallypoint.agent")

#: The agent reads at most this many bytes of the file.
_MOST = 1 << 20


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
