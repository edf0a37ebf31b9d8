"""Which supervisor holds which job, and the heartbeats of supervisors, which are files that coordinators read.

A hold lasts as long as its supervisor beats. After the ledger was lost, a supervisor claims its holds again with its beats; a
new supervisor waits for one silence first.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rallypoint.backends.contract import HeldError, Pulse
from rallypoint.backends.local import durable
from rallypoint.supervision.record import Holder
from rallypoint.wire.private import private_folder

__all__ = ["SILENT", "Holds"]

#: Seconds without a beat after which another supervisor may take a job.
SILENT = 10.0

#: The ledger has just started; the supervisor of the job has sent no heartbeat since.
_NOT_YET_KNOWN = "a supervisor that the restarted ledger does not know yet"

_ID = re.compile(r"[A-Za-z0-9-]{1,80}", re.ASCII)


@dataclass
class _Hold:
    me: str
    holder: str


class Holds:
    """The holds of one ledger. `clock` returns seconds and never goes back."""

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = home / "supervisors", clock
        self._holds: dict[str, _Hold] = {}
        self._beats: dict[str, float] = {}
        self._began = clock()
        #: Supervisors that beat shortly before this ledger was started: they may hold any job.
        self._earlier = {path.stem for path in self._folder.glob("*.json") if time.time() - path.stat().st_mtime < SILENT}
        self._count = 0
        self._writing = threading.Lock()

    @property
    def any(self) -> bool:
        """Whether a supervisor beats."""
        now = self._clock()
        return any(now - at < SILENT for at in self._beats.values())

    def take(self, name: str, me: str, holder: str) -> None:
        """Give a job to a supervisor; raises `HeldError` while another holds it."""
        current = self._holds.get(name)
        if current is not None and current.me != me and self._alive(current.me):
            raise HeldError(name, current.holder)
        if current is None and self._earlier - {me} and self._clock() - self._began < SILENT:
            raise HeldError(name, _NOT_YET_KNOWN)
        self._beats.setdefault(me, self._clock())
        self._holds[name] = _Hold(me=me, holder=holder)

    def expired(self) -> tuple[str, ...]:
        """Take every job back whose supervisor is silent; return their names."""
        found = tuple(name for name, hold in self._holds.items() if not self._alive(hold.me))
        for name in found:
            del self._holds[name]
        return found

    def _alive(self, me: str) -> bool:
        return self._clock() - self._beats.get(me, float("-inf")) < SILENT

    def check(self, name: str, me: str) -> None:
        """Raise `HeldError` when another supervisor has taken the job over from `me`."""
        current = self._holds.get(name)
        if current is not None and current.me != me:
            raise HeldError(name, current.holder)

    def release(self, name: str, me: str) -> None:
        """Take a job back from a supervisor."""
        current = self._holds.get(name)
        if current is not None and current.me == me:
            del self._holds[name]

    def beat(self, me: str, jobs: Mapping[str, str], *, leave: bool = False) -> None:
        """Note a beat of a supervisor that holds `jobs`, or its last one; `write` follows."""
        if _ID.fullmatch(me) is None:
            raise ValueError(f"supervisor id {me!r:.80} is not allowed; expected at most 80 letters, digits and '-'")
        if leave:
            self._beats.pop(me, None)
            return
        self._beats[me] = self._clock()
        for name, holder in jobs.items():
            self._holds.setdefault(name, _Hold(me=me, holder=holder))

    def write(self, me: str) -> Path:
        """Write the heartbeat of a supervisor, or delete that of one that has left; return its file. Blocks."""
        path = self._folder / f"{me}.json"
        with self._writing:  # two beats of one supervisor write the same file
            if me not in self._beats:
                path.unlink(missing_ok=True)
                return path
            self._count += 1
            private_folder(self._folder)
            durable.write_text(str(path), f'{{"id": "{me}", "counter": {self._count}}}\n')
        return path

    def pulse(self, holder: Holder) -> Pulse | None:
        """Return the heartbeat of a supervisor, None when it has none any more. Blocks."""
        if _ID.fullmatch(holder.id) is None:
            return None
        try:
            found = (self._folder / f"{holder.id}.json").stat()
        except FileNotFoundError:
            return None
        return Pulse(beat=str(found.st_mtime_ns), alive=None, at=found.st_mtime)
