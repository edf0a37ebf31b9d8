"""The log of a task: the output of ranks, the events of the job, and its progress from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from rallypoint.backends.contract import Backend, LogLine
from rallypoint.report.format import counted, metrics_text
from rallypoint.wire.masked import Masking, mask_of_plan
from rallypoint.wire.sanitize import clean_text, one_line
from rallypoint.wire.status import Event, JobState, JobStatus

if TYPE_CHECKING:
    from rallypoint.backends.turns import Snapshot

__all__ = ["EARLIER_LINES", "Bookmark", "LineLog", "Narrator", "news", "progress_line", "tell_culprit", "telling_logs"]

#: Lines of earlier output that are logged again after a takeover without a stored position.
EARLIER_LINES = 100

#: Lines of each stream of the rank that failed first, if its output was not logged.
CULPRIT_LINES = 100

#: Fewer lines than this are told as they are; more than that at once are told in several groups.
_FEW, _MANY = 5, 200

#: Seconds for which lines are gathered, and between two bookmarks, which cost a request each.
_GATHER, _MARK_EVERY = 1.0, 60.0

#: Characters of lines that are logged without a pause for others in the event loop, and of one line that gets a pause.
_AT_ONCE, _LONG = 1 << 17, 4096

#: Lines of a job's story that are logged at one look, the newest, and characters of one.
_NEWS, _NEWS_LINE = 100, 2000

#: Characters of a group's title that are the last line in it.
_TITLE = 100


class LineLog(Protocol):
    """Where lines are told."""

    def info(self, line: str, /, *values: object) -> object:
        """Write a line."""


class Bookmark(Protocol):
    """Where the next process finds how far the output was told."""

    async def read(self) -> str:
        """Return the cursor that was written last, "" where none was."""

    async def write(self, cursor: str) -> None:
        """Keep a cursor."""


@contextlib.asynccontextmanager
async def telling_logs(
    backend: Backend, name: str, log: LineLog, *, ranks: frozenset[int] | None, bookmark: Bookmark | None
) -> AsyncIterator[asyncio.Task[None]]:
    """Tell the output of ranks while the context lasts; gives the task that ends when there is no more.

    Raises nothing: what could not be followed to its end is said so.
    """
    teller = _Teller(backend, name, log, ranks, bookmark)
    task = asyncio.create_task(teller.run(), name=f"lines of {name}")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        await teller.flush()
        await teller.mark()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("Cannot read more output of the job's ranks, so this log is incomplete: %s", error)


async def tell_culprit(backend: Backend, name: str, log: LineLog, rank: int) -> None:
    """Tell the last lines of one rank, in a group of its own."""
    last = (await backend.tail(name, lines=CULPRIT_LINES, rank=rank)).lines
    if not last:
        return
    texts = await asyncio.to_thread(_texts, last, await _mask(backend, name))
    number = len(last)
    log.info("::group::%s", f"Last {number} lines of the output of rank {rank}, which failed first")
    for text in texts:
        log.info("%s", text)
        if len(text) > _LONG:
            await asyncio.sleep(0)
    log.info("::endgroup::")


class _Teller:
    def __init__(
        self, backend: Backend, name: str, log: LineLog, ranks: frozenset[int] | None, bookmark: Bookmark | None
    ) -> None:
        self._backend, self._name, self._log, self._ranks, self._bookmark = backend, name, log, ranks, bookmark
        self._lines: list[LogLine] = []
        self._mask: Masking = str
        self._flushing = asyncio.Lock()
        self._waiting = asyncio.Event()
        self._cursor = self._marked = ""
        self._mark_at = 0.0

    async def run(self) -> None:
        self._mask = await _mask(self._backend, self._name)
        cursor = await self._resumed()
        flushing = asyncio.create_task(self._flush_now_and_then())
        try:
            async for line in self._read(cursor, follow=True):
                self._lines.append(line)
                self._waiting.set()
                if len(self._lines) >= _MANY:
                    await self.flush()
        finally:
            flushing.cancel()
            await asyncio.wait({flushing})
            await self.flush()

    async def _resumed(self) -> str:
        """Return where to go on: after the bookmark, or else after the end of what was written before, which is told again."""
        known = "" if self._bookmark is None else await self._bookmark.read()
        if known:
            self._cursor = self._marked = known
            return known
        return await self._earlier()

    async def _earlier(self) -> str:
        earlier, count = deque[LogLine](maxlen=EARLIER_LINES), 0
        async for line in self._read("", follow=False):
            earlier.append(line)
            count += 1
        if count > len(earlier):
            told = "%d earlier lines are omitted; `rallypoint logs %s` shows them"
            self._log.info(told, count - len(earlier), self._name)
        self._lines.extend(earlier)
        await self.flush()
        return self._cursor

    async def _read(self, cursor: str, *, follow: bool) -> AsyncIterator[LogLine]:
        # A backend reads one rank or all of them.
        one = next(iter(self._ranks)) if self._ranks is not None and len(self._ranks) == 1 else None
        async for line in self._backend.logs(self._name, rank=one, cursor=cursor, follow=follow):
            if self._ranks is None or line.rank in self._ranks:
                yield line

    async def _flush_now_and_then(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._waiting.wait()
            await asyncio.sleep(_GATHER)
            await self.flush()
            if loop.time() >= self._mark_at:
                self._mark_at = loop.time() + _MARK_EVERY
                await self.mark()

    async def flush(self) -> None:
        """Log the gathered lines, a part at a time: the event loop may have other triggers."""
        async with self._flushing:
            self._waiting.clear()
            while self._lines:
                part = _first(self._lines)
                texts = await asyncio.to_thread(_texts, part, self._mask)
                del self._lines[: len(part)]
                self._cursor = await asyncio.to_thread(str, part[-1].cursor)
                self._log_part(part, texts)
                await asyncio.sleep(0)

    def _log_part(self, lines: Sequence[LogLine], texts: Sequence[str]) -> None:
        if len(lines) < _FEW:
            _tell(self._log, texts)
            return
        ranks = sorted({line.rank for line in lines})
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        last = one_line(self._mask(lines[-1].text)[: _TITLE + 1], _TITLE)
        _tell_group(self._log, f"{len(lines)} lines of {who}; last line: {last}", texts)

    async def mark(self) -> None:
        """Keep how far it was told; that it cannot be kept costs a few lines told twice."""
        if self._bookmark is not None and self._cursor != self._marked:
            self._marked = self._cursor
            await self._bookmark.write(self._cursor)


def _first(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return as many lines as are logged without a pause, at least one."""
    size = 0
    for place, line in enumerate(lines[:_MANY]):
        size += len(line.text)
        if place and size > _AT_ONCE:
            return lines[:place]
    return lines[:_MANY]


def _texts(lines: Sequence[LogLine], mask: Masking) -> list[str]:
    return [f"[rank {line.rank} {line.stream}] {clean_text(mask(line.text))}" for line in lines]


async def _mask(backend: Backend, name: str) -> Masking:
    """Return what hides the secrets of a job: a triggerer renders no templates, so Airflow does not know them there."""
    stored = await backend.load(name)
    return str if stored is None else await asyncio.to_thread(mask_of_plan, stored.plan)


def _tell_group(log: LineLog, title: str, texts: Sequence[str]) -> None:
    log.info("::group::%s", title)
    _tell(log, texts)
    log.info("::endgroup::")


def _tell(log: LineLog, texts: Sequence[str]) -> None:
    for text in texts:
        log.info("%s", text)


#: Seconds between two lines about progress.
PROGRESS_EVERY = 15.0


def news(before: tuple[Event, ...], after: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events of `after` that were not in `before`; both are ordered, and the oldest may have been dropped."""
    if not before:
        return after
    last = before[-1]
    for index in range(len(after) - 1, -1, -1):
        if after[index] == last:
            return after[index + 1 :]
    return after


def progress_line(status: JobStatus) -> str:
    """Return one line about where the training is."""
    progress = status.progress
    step = "no step reported" if progress.step is None else f"step {progress.step} {metrics_text(progress)}".rstrip()
    fence = f"attempt {status.fence.attempt}, round {status.fence.round}"
    return f"{step} ({counted(status.world_size, 'rank')} on {counted(len(status.world), 'node')}, {fence})"


class Narrator:
    """Given every snapshot of a supervision loop, tells each thing once.

    Args:
        tell: gets one line at a time.
        clock: seconds, only differences of it matter.
    """

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tell = lambda line: tell(clean_text(line, _NEWS_LINE))
        self._history: tuple[Event, ...] = ()
        self._events: tuple[Event, ...] = ()
        self._supervising: bool | None = None
        self._next_progress = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        """Tell what is new in `snapshot`."""
        record, status = snapshot.record, snapshot.status
        self._tell_role(supervising=snapshot.supervising)
        if not snapshot.supervising:  # a supervisor logs what it decides by itself
            self._tell_new(self._history, record.history)
        self._history = record.history
        if status is None or status.uid != record.uid:
            return
        self._tell_new(self._events, status.events)
        self._events = status.events
        if status.state is JobState.RUNNING and self._clock() >= self._next_progress:
            self._next_progress = self._clock() + PROGRESS_EVERY
            self._tell(progress_line(status))

    def _tell_new(self, before: tuple[Event, ...], after: tuple[Event, ...]) -> None:
        for event in news(before, after[-_NEWS:]):
            self._tell(f"{event.kind}: {event.detail}")

    def _tell_role(self, *, supervising: bool) -> None:
        if self._supervising is not supervising and (self._supervising is not None or not supervising):
            self._tell(
                "this process is now the supervisor of the job"
                if supervising
                else "another process is the supervisor of the job; watching"
            )
        self._supervising = supervising
