"""Reading the logs of a job's pods: what is there, and what comes, until the job is over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from rallypoint.backends.contract import BackendError, LogLine, Tail
from rallypoint.backends.cursors import MAX_RANKS
from rallypoint.backends.kubernetes.client import lines_of
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.judging import mounts
from rallypoint.backends.kubernetes.watching.logs import Listener, Places, Said, read_pod
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire.podlog import LINE_BYTES

__all__ = ["LogReader"]

#: Seconds between two looks for new pods, and between two tries of a log that was cut.
_LOOK, _AGAIN = 2.0, 1.0

#: Seconds without a line after which a followed log is asked for anew; and for which the last lines of a job that is over are
#: waited for.
_SILENCE, _LAST = 300.0, 20.0

#: Lines that wait to be taken from all pods together; a pod whose lines nobody takes is read no further.
_BUFFER = 2000

#: Lines of the end of a pod's log that are read at least and at most, and bytes of all pods together.
_TAIL_LINES, _MOST_LINES, _TAIL_BYTES = 1000, 4000, 64 << 20

#: A request for a whole log.
_WHOLE: Mapping[str, str] = MappingProxyType({})

#: Bytes of logs whose lines are held and sorted together, and bytes that are parsed on the event loop.
_SORTED_BYTES, _SMALL_BLOCK = 16 << 20, 4 << 10

Queue = asyncio.Queue[Said]


class LogReader:
    """The logs of one job from a cursor on.

    Args:
        ranks: more than the highest rank of the job; lines of higher ranks are forged.
    """

    def __init__(self, cluster: Cluster, job: JobRef, *, rank: int | None, cursor: str, ranks: int = MAX_RANKS) -> None:
        self._cluster, self._job, self._rank, self._ranks = cluster, job, rank, ranks
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
            async for said, _ in self._parts(pods.pop(), query):
                left -= sum(len(line.text) for line in said)
                found += said
        return await asyncio.to_thread(self._taken, found, count)

    def _taken(self, every: list[Said], count: int) -> Tail:
        """Return the last lines of each stream; all of them are taken as read."""
        streams: dict[tuple[int, str], deque[tuple[int, LogLine]]] = {}
        for number, said in enumerate(sorted(every, key=lambda line: line.order)):
            kept = streams.setdefault((said.rank, said.stream), deque(maxlen=count))
            kept.append((number, dataclasses.replace(self._places.take(said), cursor="")))
        last = sorted((pair for kept in streams.values() for pair in kept), key=lambda pair: pair[0])
        return Tail(lines=tuple(line for _, line in last), cursor=self._places.cursor())

    async def follow(self, over: Callable[[], Awaitable[bool]]) -> AsyncIterator[LogLine]:
        """Yield lines as they come, until the job is `over` and its pods have been read to their ends."""
        async for line in self.read():
            yield line
        queue: Queue = asyncio.Queue(_BUFFER)
        readers: dict[str, asyncio.Task[None]] = {}
        loop, until = asyncio.get_running_loop(), float("inf")
        try:
            while loop.time() < until:
                done = await over()
                until = min(until, loop.time() + _LAST) if done else until
                await self._begin(readers, queue)
                async for line in self._drained(queue, loop.time() + (_AGAIN / 10 if done else _LOOK)):
                    yield line
                if done and queue.empty() and all(task.done() for task in readers.values()):
                    return
        finally:
            for task in readers.values():
                task.cancel()
            if readers:
                await asyncio.wait(readers.values())

    async def _begin(self, readers: dict[str, asyncio.Task[None]], queue: Queue) -> None:
        """Read the pods, too, that were not read yet."""
        with contextlib.suppress(BackendError):
            for pod in await self._pods():
                if pod.uid not in readers and pod.host and not mounts(pod):
                    readers[pod.uid] = asyncio.create_task(self._follow_pod(pod, queue), name=f"log {pod.name}")

    async def _drained(self, queue: Queue, until: float) -> AsyncIterator[LogLine]:
        loop = asyncio.get_running_loop()
        # Pods that write without a pause must not keep new ones from being read.
        while loop.time() < until:
            line = queue.get_nowait() if not queue.empty() else await _next(queue, until - loop.time())
            if line is not None and self._places.is_new(line):
                yield self._places.take(line)

    async def _follow_pod(self, pod: PodView, queue: Queue) -> None:
        """Put a pod's lines into the queue until its log has ended; one that is cut is gone on with."""
        path = self._cluster.path("pods", pod.name, "log")
        query = {"container": pod.main, "timestamps": "true", "follow": "true"}
        while True:
            try:
                async with self._cluster.api.stream(path, query=query, silence=_SILENCE) as blocks:
                    # Lines of one time are counted, so the count begins where the reading does.
                    listener = self._listener(pod)
                    async for block in blocks:
                        for line in await self._read_block(listener, block):
                            await queue.put(line)
                            query["sinceTime"] = f"{line.at.partition('.')[0]}Z"
            except ApiError as error:
                if error.status == 404:
                    return
            except BackendError:
                pass
            if await self._has_ended(pod):
                return
            await asyncio.sleep(_AGAIN)

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

    async def _parts(self, pod: PodView, query: Mapping[str, str] = _WHOLE) -> AsyncIterator[tuple[list[Said], int]]:
        """Yield the lines of a pod's log in parts, and the bytes of each part; none of a log that is not there."""
        for which in self._logs_of(pod):
            # Lines of one time are counted, so the count begins with the log.
            listener = self._listener(pod)
            try:
                async for part in read_pod(self._cluster, pod, {**query, **which}):
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
        pods = [p for p in await self._every() if p.labels.part is Part.NODE]
        return sorted(pods, key=lambda p: (p.labels.attempt, p.labels.node, p.labels.incarnation))


async def _next(queue: Queue, timeout: float) -> Said | None:
    """Return what comes within `timeout` seconds, or None."""
    # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with a line.
    coming = asyncio.ensure_future(queue.get())
    try:
        await asyncio.wait([coming], timeout=timeout)
    finally:
        coming.cancel()
    return coming.result() if coming.done() and not coming.cancelled() else None
