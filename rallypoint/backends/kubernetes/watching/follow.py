"""Reading the logs of a job's pods: what is there, and what comes, until the job is over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from rallypoint.backends.contract import BackendError, LogLine, Tail
from rallypoint.backends.cursors import MAX_RANKS
from rallypoint.backends.kubernetes.client import lines_of
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.following import Follower, PodLog
from rallypoint.backends.kubernetes.watching.known_pods import Known, every_node
from rallypoint.backends.kubernetes.watching.log_shares import PROCESS, LogShares
from rallypoint.backends.kubernetes.watching.logs import Listener, Places, Said, read_pod, second_of
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire.podlog import LINE_BYTES

__all__ = ["LogReader"]

#: Seconds between two looks for new pods, and when a job is over.
_LOOK, _LAST_LOOK = 2.0, 0.1

#: Seconds without a byte after which a followed log is asked for anew, and a turn of one that is not is given up.
_SILENCE, _SILENT_TURN = 300.0, 30.0

#: Seconds for which the last lines of a job that is over are waited for, and more of them for each log.
_LAST, _LAST_EACH = 20.0, 0.1

#: Lines that wait to be taken from all pods together; a pod whose lines nobody takes is read no further.
_BUFFER = 500

#: Minimum and maximum number of last lines that are read of a pod; maximum size of those of all pods, as read and in memory;
#: memory of a line besides its text. Sizes in bytes.
_TAIL_LINES, _MOST_LINES, _TAIL_BYTES, _LINE_MEMORY = 1000, 4000, 64 << 20, 512

#: A request for a whole log.
_WHOLE: Mapping[str, str] = MappingProxyType({})

#: Bytes of logs whose lines are held and sorted together, and bytes that are parsed on the event loop.
_SORTED_BYTES, _SMALL_BLOCK = 16 << 20, 4 << 10

#: Pods that are sorted on the event loop.
_FEW_PODS = 256

#: What is known where nothing is.
_ANY = Known(chosen=every_node)

Queue = asyncio.Queue[Said]


class LogReader:
    """The logs of one job from a cursor on.

    Args:
        known: which pods the job can have; all that have its labels, where nothing is known.
        ranks: more than the highest rank of the job; lines of higher ranks are forged.
        shares: how many connections it may have while it follows.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: JobRef,
        *,
        rank: int | None,
        cursor: str,
        known: Known = _ANY,
        ranks: int = MAX_RANKS,
        shares: LogShares = PROCESS,
    ) -> None:
        self._cluster, self._job, self._rank, self._ranks, self._known = cluster, job, rank, ranks, known
        self._shares = shares
        self._places = Places(cursor, ranks)

    async def read(self) -> AsyncIterator[LogLine]:
        """Yield what is there now and was not read yet. Raises `BackendError`.

        Lines come by attempt, round and rank. Of logs that are larger than `_SORTED_BYTES` together, each part of that size is
        sorted by itself, so that the logs need not fit into memory.
        """
        found, size = list[Said](), 0
        for pod in await self._pods():
            async for said, length in self._parts(pod):
                found += said
                size += length
                if size >= _SORTED_BYTES:
                    for line in await asyncio.to_thread(self._new, found):
                        yield line
                    found, size = [], 0
        for line in await asyncio.to_thread(self._new, found):
            yield line

    def _new(self, found: list[Said]) -> list[LogLine]:
        ordered = sorted(found, key=lambda line: line.order)
        return [self._places.take(line) for line in ordered if self._places.is_new(line)]

    async def tail(self, count: int, *, node: int | None, local_ranks: int) -> Tail:
        """Return the last `count` lines of each stream of the ranks, and the cursor behind them. Raises `BackendError`.

        Args:
            count: a pod's log mixes ranks, so a rank that wrote little beside others may have fewer.
            node: where the rank was seen last; None where that is not known. Its pods are read first.
            local_ranks: ranks that share a pod's log.
        """
        asked = min(_MOST_LINES, max(_TAIL_LINES, 2 * count * local_ranks))
        pods = sorted(await self._pods(), key=lambda p: (p.labels.node == node, p.labels.attempt, p.labels.incarnation))
        found, left = list[Said](), _TAIL_BYTES
        while pods and left > 0 and (self._rank is None or len(found) < max(1, count)):
            limit = min(asked * LINE_BYTES, left if self._rank is not None else max(LINE_BYTES, left // len(pods)))
            # What is over the limit is cut from the end of the answer, so no more lines are requested than fit.
            query = {"tailLines": str(max(1, limit // LINE_BYTES)), "limitBytes": str(limit)}
            said, size = await self._end_of(pods.pop(), query, left)
            found += said
            left -= size
        return await asyncio.to_thread(self._taken, found, count)

    async def _end_of(self, pod: PodView, query: Mapping[str, str], most: int) -> tuple[list[Said], int]:
        """Return the lines that a request for the end of a pod's log has, and their size: not much more than `most`."""
        found, size = list[Said](), 0
        async with contextlib.aclosing(self._parts(pod, query)) as parts:
            async for said, length in parts:
                found += said
                size += max(length, sum(_LINE_MEMORY + sys.getsizeof(line.text) for line in said))
                if size >= most:
                    break
        return found, size

    def _taken(self, every: list[Said], count: int) -> Tail:
        """Return the last lines of each stream; all of them are taken as read."""
        streams: dict[tuple[int, str], deque[tuple[int, LogLine]]] = {}
        for number, said in enumerate(sorted(every, key=lambda line: line.order)):
            kept = streams.setdefault((said.rank, said.stream), deque(maxlen=count))
            kept.append((number, dataclasses.replace(self._places.take(said), cursor="")))
        last = sorted((pair for kept in streams.values() for pair in kept), key=lambda pair: pair[0])
        return Tail(lines=tuple(line for _, line in last), cursor=self._places.cursor())

    async def follow(self, look: Callable[[Known], Awaitable[Known]]) -> AsyncIterator[LogLine]:
        """Yield lines as they come, until the job is over and its pods have been read to their ends.

        Args:
            look: returns what is known of the job now; it is given what was known before.
        """
        async for line in self.read():
            yield line
        queue: Queue = asyncio.Queue(_BUFFER)
        follower = Follower(functools.partial(self._read_on, queue), shares=self._shares)
        loop, until = asyncio.get_running_loop(), float("inf")
        try:
            while loop.time() < until:
                self._known = await look(self._known)
                with contextlib.suppress(BackendError):
                    follower.look(await self._pods(), self._known.rank_place)
                over = self._known.over
                until = min(until, loop.time() + _LAST + _LAST_EACH * follower.unread) if over else until
                async for line in self._drained(queue, loop.time() + (_LAST_LOOK if over else _LOOK)):
                    yield line
                if over and queue.empty() and not follower.unread:
                    return
        finally:
            await follower.close()

    async def _drained(self, queue: Queue, until: float) -> AsyncIterator[LogLine]:
        loop = asyncio.get_running_loop()
        # Pods that write without a pause must not keep new ones from being read.
        while loop.time() < until:
            line = queue.get_nowait() if not queue.empty() else await _next(queue, until - loop.time())
            if line is not None and self._places.is_new(line):
                yield self._places.take(line)

    async def _read_on(self, queue: Queue, log: PodLog, follow: bool) -> None:  # noqa: FBT001  the shape of Read
        """Put the lines of a log into the queue that come after those which were read; with `follow` until it is cut."""
        over = log.pod.over
        try:
            await self._copy(queue, log, follow=follow)
        except ApiError as error:
            log.ended = error.status == 404
            over = over and error.status == 400  # no container has run in it
        except BackendError:
            over = False
        if not log.ended:
            log.ended = await self._has_ended(log.pod) if follow else over

    async def _copy(self, queue: Queue, log: PodLog, *, follow: bool) -> None:
        path = self._cluster.path("pods", log.pod.name, "log")
        query = {"container": log.pod.main, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        query |= {"sinceTime": log.since} if log.since else {}
        async with self._cluster.api.stream(path, query=query, silence=_SILENCE if follow else _SILENT_TURN) as blocks:
            # Lines of one time are counted, so the count begins where the reading does.
            listener = self._listener(log.pod)
            async for block in blocks:
                for line in await self._read_block(listener, block):
                    await queue.put(line)
                log.since = second_of(block) or log.since

    async def _read_block(self, listener: Listener, block: bytes) -> list[Said]:
        if len(block) <= _SMALL_BLOCK:
            return self._heard(listener, [block])
        # One at a time for all pods: the event loop gets its turns however much they write.
        async with self._cluster.parsing:
            return await asyncio.to_thread(self._heard, listener, [block])

    async def _has_ended(self, pod: PodView) -> bool:
        try:
            now = await self._cluster.get("pods", pod.name)
        except BackendError:
            return False
        return now is None or (now.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    async def _parts(self, pod: PodView, query: Mapping[str, str] = _WHOLE) -> AsyncGenerator[tuple[list[Said], int], None]:
        """Yield the lines of a pod's log in parts, and the bytes of each part; none of a log that is not there."""
        for which in self._logs_of(pod):
            # Lines of one time are counted, so the count begins with the log.
            listener = self._listener(pod)
            try:
                async with contextlib.aclosing(read_pod(self._cluster, pod, {**query, **which})) as parts:
                    async for part in parts:
                        # In a thread: a log of 10 MiB takes a second, for which other triggers of the process would wait.
                        yield await asyncio.to_thread(self._heard, listener, part), sum(map(len, part))
            except ApiError as error:
                # Gone by now, or not begun.
                if error.status not in (400, 404):
                    raise

    def _heard(self, listener: Listener, part: list[bytes]) -> list[Said]:
        heard = (listener.hear(line.decode(errors="replace")) for block in part for line in lines_of(block))
        return [line for line in heard if line is not None and self._rank in (None, line.rank)]

    def _logs_of(self, pod: PodView) -> Iterable[Mapping[str, str]]:
        """Return what a request adds for each log that the kubelet has of a pod, the earliest first."""
        return ({},)

    def _listener(self, pod: PodView) -> Listener:
        """Return who hears a pod's log: only our agents say which rank speaks, and they are in the pods that we make."""
        where = pod.labels
        return Listener(where.attempt, alone=None if where.attempt else where.node, ranks=self._ranks)

    async def _every(self) -> tuple[PodView, ...]:
        cache = self._cluster.cache
        return tuple(cache.pods_of(self._job.uid) if self._cluster.fresh else await self._cluster.pods_of(self._job))

    async def _pods(self) -> list[PodView]:
        every = await self._every()
        # In a thread where there are many: anybody who can create pods can give them the labels of the job.
        return await asyncio.to_thread(self._ordered, every) if len(every) > _FEW_PODS else self._ordered(every)

    def _ordered(self, every: Iterable[PodView]) -> list[PodView]:
        return sorted(self._known.chosen(every), key=lambda p: (p.labels.attempt, p.labels.node, p.labels.incarnation, p.main))


async def _next(queue: Queue, timeout: float) -> Said | None:
    """Return what comes within `timeout` seconds, or None."""
    # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with a line.
    coming = asyncio.ensure_future(queue.get())
    try:
        await asyncio.wait([coming], timeout=timeout)
    finally:
        coming.cancel()
    return coming.result() if coming.done() and not coming.cancelled() else None
