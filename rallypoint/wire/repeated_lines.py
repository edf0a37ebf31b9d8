"""Summarize repeated log lines, so that a lasting fault or a hostile client cannot fill the disk.

Lines are grouped by logger, level and format. The first `BURST` lines of a template are written at once, then one
every `REFILL` seconds; of identical lines `SAME` are written in `WINDOW` seconds. Omitted lines are
counted, and reported in one line at most `WINDOW` seconds later, and at the end of the process:

    repeated 4210 times in 10 s, last: no connection can be accepted: Too many open files

`Counts` is the pure part; `RepeatedLines` is a filter for the handlers of the root logger, or for one logger.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = [
    "BURST",
    "KEPT",
    "REFILL",
    "SAME",
    "WINDOW",
    "Counts",
    "RepeatedLines",
    "Summary",
    "limit_logger",
    "limit_repeated_lines",
]

#: Number of lines of one format that are written at once, and seconds until one more is written.
BURST, REFILL = 100, 2.0

#: Number of identical lines that are written, and the period in seconds.
SAME, WINDOW = 5, 10.0

#: Number of formats and texts in memory; the least recently used are dropped first.
KEPT = 512

#: Characters of a text that identify it, and that a summary shows.
_SHOWN = 300

Key = tuple[str, int, str]


@dataclass(kw_only=True)
class _Bucket:
    """Lines of one format: how many more may be written, and how many were omitted since `since`."""

    left: float
    at: float
    missed: int = 0
    since: float = 0.0
    last: str = ""
    texts: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Number of omitted lines of one logger and level, and the period; `last` is the text of the last line."""

    name: str
    level: int
    missed: int
    seconds: float
    last: str

    def __str__(self) -> str:
        return f"repeated {self.missed} times in {self.seconds:.0f} s, last: {self.last}"


class Counts:
    """Decide which lines are written. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()
        self._missed: dict[Key, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def pending(self) -> bool:
        """Whether lines were omitted that no summary has reported."""
        return bool(self._missed)

    def admits(self, key: Key, text: str, now: float) -> bool:
        """Return whether a line is written; count an omitted line."""
        bucket = self._bucket(key, now)
        bucket.left = min(BURST, bucket.left + (now - bucket.at) / REFILL)
        bucket.at = now
        if bucket.left >= 1 and self._is_new(bucket, text[:_SHOWN], now):
            bucket.left -= 1
            return True
        if len(self._missed) >= KEPT and key not in self._missed:
            # A flood of different formats: one summary covers all of them.
            bucket = self._missed.setdefault((key[0], key[1], ""), _Bucket(left=0, at=now, since=now))
        elif not bucket.missed:
            bucket.since = now
            self._missed[key] = bucket
        bucket.missed += 1
        bucket.last = text[:_SHOWN]
        return False

    def summaries(self, now: float, *, everything: bool = False) -> list[Summary]:
        """Return and reset the counts that are `WINDOW` seconds old, or `everything`."""
        told = []
        for key, bucket in tuple(self._missed.items()):
            if everything or now >= bucket.since + WINDOW:
                del self._missed[key]
                seconds = now - bucket.since
                told.append(Summary(name=key[0], level=key[1], missed=bucket.missed, seconds=seconds, last=bucket.last))
                bucket.missed = 0
        return told

    def _bucket(self, key: Key, now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            # Counts of dropped entries stay in `_missed` until the next summary.
            bucket = self._buckets[key] = self._missed.get(key) or _Bucket(left=BURST, at=now)
            if len(self._buckets) > KEPT:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket

    @staticmethod
    def _is_new(bucket: _Bucket, text: str, now: float) -> bool:
        since, count = bucket.texts.get(text, (now, 0))
        if now >= since + WINDOW:
            since, count = now, 0
        bucket.texts[text] = since, min(count + 1, SAME + 1)
        bucket.texts.move_to_end(text)
        if len(bucket.texts) > BURST:
            bucket.texts.popitem(last=False)
        return count < SAME


class RepeatedLines(logging.Filter):
    """Logging filter that omits repeated lines and passes their number to `emit`.

    Args:
        emit: writes a summary.
        clock: monotonic, in seconds.

    """

    def __init__(self, emit: Callable[[logging.LogRecord], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._emit, self._clock, self._counts = emit, clock, Counts()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; a summary always is written."""
        if getattr(record, "summary", False):
            return True
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001  the handler tells of a line that cannot be formatted
            text = str(record.msg)
        with self._lock:
            admitted = self._counts.admits((record.name, record.levelno, str(record.msg)[:_SHOWN]), text, self._clock())
            if self._counts.pending and self._timer is None:
                self._timer = threading.Timer(WINDOW, self._tick)
                self._timer.daemon = True
                self._timer.start()
        return admitted

    def flush(self) -> None:
        """Write all summaries now."""
        self._tell(everything=True)

    def close(self) -> None:
        """Stop the thread that writes summaries."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _tick(self) -> None:
        with self._lock:
            self._timer = None
        self._tell(everything=False)

    def _tell(self, *, everything: bool) -> None:
        with self._lock:
            summaries = self._counts.summaries(self._clock(), everything=everything)
            if self._counts.pending and self._timer is None and not everything:
                self._timer = threading.Timer(WINDOW, self._tick)
                self._timer.daemon = True
                self._timer.start()
        for summary in summaries:
            record = logging.LogRecord(summary.name, summary.level, "", 0, "%s", (summary,), None)
            record.summary = True
            self._emit(record)


def limit_repeated_lines() -> None:
    """Add the filter to every handler of the root logger. Call this once per process, after the handlers are set up."""
    for handler in logging.getLogger().handlers:
        _limit(handler)


def limit_logger(logger: logging.Logger) -> None:
    """Add the filter to one logger, in a process whose handlers belong to a script; ignored the second time."""
    _limit(logger)


def _limit(writer: logging.Handler | logging.Logger) -> None:
    if not any(isinstance(one, RepeatedLines) for one in writer.filters):
        repeated = RepeatedLines(writer.handle)
        writer.addFilter(repeated)
        atexit.register(repeated.flush)
