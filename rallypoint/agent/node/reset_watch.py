"""MindCluster's reset file as this agent sees it: read again only when it is another one than before."""

from __future__ import annotations

import logging
from pathlib import Path

from rallypoint.wire.codec import WireError
from rallypoint.wire.plan import Plan, Profile
from rallypoint.wire.reset_file import ResetFile, read_reset

__all__ = ["ResetWatch"]

log = logging.getLogger("rallypoint.agent")

#: Bytes that are read of it at most.
_MOST = 1 << 20


class ResetWatch:
    """Looks at one file; without a path there is nothing to see.

    It is looked at for every report, so also for the one that tells a fault: nobody waits for a period to be over. One that is
    missing says nothing. Where it cannot be read what was read last holds on, since it may just be written; the log says so.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._seen: tuple[int, int, int] | None = None
        self._known = ResetFile()

    @classmethod
    def of(cls, plan: Plan) -> ResetWatch:
        """Return the watch that a plan asks for: only MindCluster has such a file."""
        scheduling = plan.scheduling if plan.profile is Profile.MINDCLUSTER else None
        return cls("" if scheduling is None else scheduling.reset_file)

    def foreign(self) -> str:
        """Return what graceful fault tolerance has put there, "" where that is nothing."""
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
                "cannot read the MindCluster reset file %s: %s; the agent uses the previous content of the file", path, error
            )
