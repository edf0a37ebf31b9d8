"""How those pods of followed jobs were seen last that are deleted by now, within limits of number and bytes. No I/O.

A pod of which nothing is kept counts as deleted by another client, and the server itself is asked for it: so any of them can be
forgotten, and only its exit code is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from rallypoint.backends.kubernetes.watching.bounded import memory_of
from rallypoint.backends.kubernetes.watching.views import PodView

__all__ = ["Gone"]

#: Pods and bytes of one job, and of all. A job has at most 16,384 nodes, whose pods may all be deleted at once, and the view of
#: one has 2 KiB.
_MOST, _MOST_BYTES = 32_768, 64 << 20
_MOST_OF_ALL, _MOST_BYTES_OF_ALL = 131_072, 256 << 20

#: Bytes of a view that is removed before all others: no ordinary pod has so many.
_LARGE = 16 << 10


class Gone:
    """The deleted pods by the uid of their job and their own. Where a limit is reached, a quarter is forgotten at once."""

    def __init__(
        self, *, most: tuple[int, int] = (_MOST, _MOST_BYTES), of_all: tuple[int, int] = (_MOST_OF_ALL, _MOST_BYTES_OF_ALL)
    ) -> None:
        self._most, self._most_of_all = most, of_all
        self._kept: dict[str, dict[str, _Kept]] = {}
        self._sizes: dict[str, int] = {}
        self._counter = itertools.count()
        self.count = self.size = 0

    def of(self, job_uid: str) -> tuple[PodView, ...]:
        """Return those of one job, in the order of their deletion."""
        return tuple(kept.view for kept in self._kept.get(job_uid, {}).values())

    def add(self, view: PodView) -> None:
        """Keep one."""
        job = view.labels.uid
        self.forget(job, (view.uid,))
        kept = _Kept(view, memory_of(view), next(self._counter))
        its = self._kept.setdefault(job, {})
        its[view.uid] = kept
        self._sizes[job] = self._sizes.get(job, 0) + kept.size
        self.count, self.size = self.count + 1, self.size + kept.size
        self._trim(its.values(), len(its), self._sizes[job], self._most)
        if self.count > self._most_of_all[0] or self.size > self._most_of_all[1]:
            every = [one for those in self._kept.values() for one in those.values()]
            self._trim(every, self.count, self.size, self._most_of_all)

    def forget(self, job_uid: str, uids: Iterable[str]) -> None:
        """Forget some of one job."""
        its = self._kept.get(job_uid, {})
        for kept in filter(None, [its.pop(uid, None) for uid in uids]):
            self._sizes[job_uid] -= kept.size
            self.count, self.size = self.count - 1, self.size - kept.size
        if not its:
            self._kept.pop(job_uid, None)
            self._sizes.pop(job_uid, None)

    def drop(self, job_uid: str) -> None:
        """Forget all of one job."""
        self.forget(job_uid, tuple(self._kept.get(job_uid, ())))

    def _trim(self, those: Iterable[_Kept], count: int, size: int, most: tuple[int, int]) -> None:
        """Forget the large ones first, then those of the job with the most bytes, then the oldest."""
        if count <= most[0] and size <= most[1]:
            return

        def rank(kept: _Kept) -> tuple[bool, int, int]:
            return kept.size <= _LARGE, -self._sizes[kept.view.labels.uid], kept.number

        for kept in sorted(those, key=rank):
            if count <= most[0] * 3 // 4 and size <= most[1] * 3 // 4:
                return
            count, size = count - 1, size - kept.size
            self.forget(kept.view.labels.uid, (kept.view.uid,))


class _Kept:
    """One of them: its bytes, and which one it was in the order of all deletions."""

    __slots__ = ("number", "size", "view")

    def __init__(self, view: PodView, size: int, number: int) -> None:
        self.view, self.size, self.number = view, size, number
