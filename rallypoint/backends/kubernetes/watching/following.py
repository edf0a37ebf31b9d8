"""Which logs of a job's pods are followed by a connection of their own, and which are read in turns."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from rallypoint.backends.kubernetes.watching.judging import mounts
from rallypoint.backends.kubernetes.watching.known_pods import RankPlace
from rallypoint.backends.kubernetes.watching.log_shares import PROCESS, LogShares
from rallypoint.backends.kubernetes.watching.views import PodView

__all__ = ["Follower", "PodLog", "due"]

#: Seconds between two turns of a log at least, and per log that is read in turns: the API server has other clients.
_EVERY, _EACH = 2.0, 0.02

#: Seconds of one turn; a pod that sends its log slowly does not keep others from theirs.
_TURN = 60.0

#: Seconds between two tries of a log that was cut, and of a connection that others have: at least, and at most.
_AGAIN, _CONTENDED = 1.0, (0.05, 0.5)

#: So few logs all have a connection, although the rank is on one node: when the rank moves, its lines come without a delay.
_FEW = 4


@dataclass(eq=False)
class PodLog:
    """The log of one pod.

    Attributes:
        since: the second up to which it was read, as the API server takes it; "" before its first line.
        near: it can have new lines of the ranks that are read; `owed` if it can have earlier ones.
        ended: it was read to its end.
        task: holds a connection for it; `busy` during a turn.
        tried: it was read since the pod had ended.
        read_at: when its last turn ended.
    """

    pod: PodView
    since: str = ""
    near: bool = True
    owed: bool = False
    ended: bool = False
    task: asyncio.Task[None] | None = None
    busy: bool = False
    tried: bool = False
    read_at: float = -math.inf


#: Reads a log on from `since`: what there is, or with `follow` what comes, too. Notes whether it has `ended`.
Read = Callable[[PodLog, bool], Awaitable[None]]


class Follower:
    """Reads the logs of a job's pods, with as many connections as it may have.

    Where there are more pods than connections, some connections read the other logs in turns, each on from where the last turn
    ended, so that no line is lost as long as the pod is there.
    """

    def __init__(self, read: Read, *, shares: LogShares = PROCESS) -> None:
        self._read, self._share = read, shares.share()
        self._logs: dict[str, PodLog] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._due: deque[PodLog] = deque()
        self._streams = 0
        self._rank_place: RankPlace | None = None

    @property
    def unread(self) -> int:
        """How many logs were not read to their ends."""
        return sum(not log.ended for log in self._logs.values())

    def look(self, pods: Iterable[PodView], rank_place: RankPlace | None) -> None:
        """Take note of the pods that there are, and where the rank that is read is; start and end connections."""
        self._note(pods)
        self._place(rank_place)
        logs = [log for log in self._logs.values() if not log.ended]
        chosen = self._chosen(logs)
        self._streams = len(chosen)
        for log in logs:
            if log.task is not None and log not in chosen:
                log.task.cancel()
        for log in chosen:
            if log.task is None and not log.busy and self._share.take():
                log.task = asyncio.create_task(self._stream(log), name=f"log {log.pod.name}")
        self._due = deque(due(logs, asyncio.get_running_loop().time()))
        for _ in range(min(len(self._due), self._most_workers() - len(self._workers))):
            self._workers.add(asyncio.create_task(self._take_turns(), name="logs in turns"))

    async def close(self) -> None:
        """End all connections."""
        tasks = [*self._workers, *(log.task for log in self._logs.values() if log.task is not None)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._share.leave()

    def _note(self, pods: Iterable[PodView]) -> None:
        there = {pod.uid: pod for pod in pods if pod.host and not mounts(pod)}
        gone = [uid for uid, log in self._logs.items() if uid not in there and log.task is None and not log.busy]
        for uid in gone:
            del self._logs[uid]
        for uid, pod in there.items():
            self._logs.setdefault(uid, PodLog(pod)).pod = pod

    def _place(self, rank_place: RankPlace | None) -> None:
        """Note which logs can have lines of the rank that is read."""
        before, self._rank_place = self._rank_place, rank_place or self._rank_place
        if self._rank_place is None:
            return
        missed = before is not None and not self._rank_place.follows(before)
        for log in self._logs.values():
            near = self._rank_place.may_have(log.pod)
            # The rank may have been there in a round that no status has shown.
            log.owed = log.owed or missed or (log.near and not near)
            log.near = near

    def _chosen(self, logs: list[PodLog]) -> list[PodLog]:
        """Return the logs that have a connection each."""
        near, limit = [log for log in logs if log.near or len(logs) <= _FEW], self._share.limit
        if len(logs) > len(near) or len(near) > limit:
            limit -= max(1, limit // 8)  # for those that are read in turns
        near.sort(key=lambda log: (log.pod.over, log.task is None))
        return near[: max(0, limit)]

    async def _stream(self, log: PodLog) -> None:
        try:
            while not log.ended:
                await self._read(log, True)
                if not log.ended:
                    await asyncio.sleep(_AGAIN)
        finally:
            log.task = None
            self._share.give()

    def _most_workers(self) -> int:
        return max(1, self._share.limit - self._streams)

    async def _take_turns(self) -> None:
        try:
            # Each waits for another time: of readers that outnumber the connections, all have theirs.
            while not self._share.take():  # noqa: ASYNC110  other readers may be in other threads
                await asyncio.sleep(random.uniform(*_CONTENDED))  # noqa: S311  spread, not secret
            try:
                await self._read_due()
            finally:
                self._share.give()
        finally:
            self._workers.discard(asyncio.current_task())

    async def _read_due(self) -> None:
        while self._due and len(self._workers) <= self._most_workers():
            log = self._due.popleft()
            if log.task is None and not log.busy:
                await self._turn(log)
            if not self._share.limit:
                return

    async def _turn(self, log: PodLog) -> None:
        # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the end.
        log.busy, log.owed, log.tried = True, False, log.tried or log.pod.over
        turn = asyncio.ensure_future(self._read(log, False))
        try:
            await asyncio.wait([turn], timeout=_TURN)
        finally:
            turn.cancel()
            await asyncio.wait([turn])
            log.busy, log.read_at = False, asyncio.get_running_loop().time()


def due(logs: Iterable[PodLog], now: float) -> list[PodLog]:
    """Return the logs that have a turn now: first those of pods that have ended, then those that were not read for longest."""
    waiting = [log for log in logs if not log.ended and not log.busy and log.task is None]
    pause = max(_EVERY, _EACH * len(waiting))
    found = (log for log in waiting if now - log.read_at >= _pause(log, pause))
    # A log that cannot be read to its end comes first but once.
    return sorted(found, key=lambda log: (log.tried or not log.pod.over, log.read_at))


def _pause(log: PodLog, usual: float) -> float:
    if log.owed or log.pod.deleting or log.pod.over:
        return _EVERY
    return usual if log.near else math.inf
