"""How many connections of this process follow logs: at most a quarter of the files that it may have open.

A triggerer runs the triggers of all DAGs, and most systems let it have 1,024 files open. Each trigger of a job follows the logs
of pods, and anybody who can create pods could use up what other triggers need. The limit is not raised: it is not ours.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

__all__ = ["PROCESS", "LogShares", "Share"]

#: Most connections of one reader, and the divisor of the limit on open files: all readers together use at most a quarter of it.
_EACH, _PART = 64, 4


def _open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class LogShares:
    """The connections of all readers, which may be in several threads.

    Args:
        open_files: gives the soft limit on open files, or a negative number where there is none.
    """

    def __init__(self, open_files: Callable[[], int] = _open_files) -> None:
        self._open_files = open_files
        self._lock = threading.Lock()
        self._readers = self._taken = 0

    def share(self) -> Share:
        """Return the share of another reader, which ends when the reader leaves."""
        with self._lock:
            self._readers += 1
        return Share(self)

    def limit(self) -> int:
        """Return how many connections each reader may have now; 0 where readers must share them in turns."""
        most = self._most()
        return min(_EACH, most // max(1, self._readers))

    def take(self) -> bool:
        """Take a connection; returns false where there is none left."""
        with self._lock:
            if self._taken >= self._most():
                return False
            self._taken += 1
            return True

    def give(self) -> None:
        """Give a connection back."""
        with self._lock:
            self._taken -= 1

    def leave(self) -> None:
        """Count one reader less."""
        with self._lock:
            self._readers -= 1

    def _most(self) -> int:
        files = self._open_files()
        return max(1, files // _PART) if files >= 0 else 1 << 20


class Share:
    """What one reader has of the connections."""

    def __init__(self, shares: LogShares) -> None:
        self._shares = shares
        self.taken = 0

    @property
    def limit(self) -> int:
        """Connections that it may have now; 0 where it may have one for a moment."""
        return self._shares.limit()

    def take(self) -> bool:
        """Take a connection, if there is one within the limit."""
        if self.taken >= max(1, self.limit) or not self._shares.take():
            return False
        self.taken += 1
        return True

    def give(self) -> None:
        """Give a connection back."""
        self.taken -= 1
        self._shares.give()

    def leave(self) -> None:
        """Give up the place, once all connections were given back."""
        self._shares.leave()


#: Those of this process.
PROCESS = LogShares()
