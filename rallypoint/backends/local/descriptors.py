"""The descriptors with which this process follows the processes of all its jobs."""

from __future__ import annotations

import resource
import threading

__all__ = ["FOLLOWED", "Descriptors"]

#: Descriptors of one job.
FOLLOWED = 512

#: Of the open files that this process may have, descriptors of all jobs take 1 of `_PART`; one job takes 1 of `_JOBS` of these.
_PART, _JOBS = 4, 4

#: Open files where the system sets no limit.
_UNLIMITED = 1 << 20


class Descriptors:
    """Counts descriptors; any thread may call it.

    A script can name any number of processes as those of its job. A triggerer needs descriptors for other triggers, too.
    """

    def __init__(self, files: int | None = None) -> None:
        """`files`: open files that this process may have; None is the limit of the system."""
        self._files, self._lock, self._taken = files, threading.Lock(), 0

    def take(self, *, has: int) -> bool:
        """Count one descriptor of a job that `has` so many; return False, and count none, if there are enough."""
        every = max(1, self._limit() // _PART)
        with self._lock:
            if self._taken >= every or has >= min(FOLLOWED, max(1, every // _JOBS)):
                return False
            self._taken += 1
            return True

    def give(self, number: int = 1) -> None:
        """Count so many descriptors less: they were closed, or not opened."""
        with self._lock:
            self._taken -= number

    def _limit(self) -> int:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if self._files is None else self._files
        return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
