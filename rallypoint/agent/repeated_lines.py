"""Log lines that repeat are counted instead of written: no stranger and no fault that lasts can fill a disk.

A line is known by its logger, its level and its template. The first `BURST` lines of a template are written at once, then one
every `REFILL` seconds; of lines that are the same word for word `SAME` are written in `WINDOW` seconds. What is left out is
counted, and told by one line at most `WINDOW` seconds later, and at the end of the process:

    repeated 4210 times in 10 s, last: no connection can be accepted: Too many open files

`Counts` is the pure part; `RepeatedLines` is a filter for the handlers of the root logger.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["BURST", "KEPT", "REFILL", "SAME", "WINDOW", "Counts", "RepeatedLines", "Summary", "limit_repeated_lines"]

#: Lines of one template that are written at once, and seconds until one more may be.
BURST, REFILL = 100, 2.0

#: Lines that are the same word for word, in so many seconds.
SAME, WINDOW = 5, 10.0

#: Templates and texts that are remembered; those that were seen longest ago are forgotten first.
KEPT = 512

#: Characters of a text by which it is known, and which a summary shows.
_SHOWN = 300

Key = tuple[str, int, str]


@dataclass(kw_only=True)
class _Bucket:
    """Lines of one template: how many more may be written, and what was left out since `since`."""

    left: float
    at: float
    missed: int = 0
    since: float = 0.0
    last: str = ""
    texts: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Lines of one logger and level that were left out in so many seconds; `last` is the text of the last one."""

    name: str
    level: int
    missed: int
    seconds: float
    last: str

    def __str__(self) -> str:
        return f"repeated {self.missed} times in {self.seconds:.0f} s, last: {self.last}"


class Counts:
    """Decides which lines are written. Times are seconds that never go backwards."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()
        self._missed: dict[Key, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def pending(self) -> bool:
        """Whether lines were left out that no summary has told of."""
        return bool(self._missed)

    def admits(self, key: Key, text: str, now: float) -> bool:
        """Return whether a line is written; count it where it is not."""
        bucket = self._bucket(key, now)
        bucket.left = min(BURST, bucket.left + (now - bucket.at) / REFILL)
        bucket.at = now
        if bucket.left >= 1 and self._is_new(bucket, text[:_SHOWN], now):
            bucket.left -= 1
            return True
        if len(self._missed) >= KEPT and key not in self._missed:
            # Templates without number: they are told together.
            bucket = self._missed.setdefault((key[0], key[1], ""), _Bucket(left=0, at=now, since=now))
        elif not bucket.missed:
            bucket.since = now
            self._missed[key] = bucket
        bucket.missed += 1
        bucket.last = text[:_SHOWN]
        return False

    def summaries(self, now: float, *, everything: bool = False) -> list[Summary]:
        """Return what was left out for `WINDOW` seconds, or `everything`, and count anew."""
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
            # What was forgotten here and has left out lines stays in `_missed` until its summary.
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
    """Leaves out lines that repeat, and has `emit` write how many they were.

    Args:
        emit: writes a summary.
        clock: seconds, never backwards.

    """

    def __init__(self, emit: Callable[[logging.LogRecord], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._emit, self._clock, self._counts = emit, clock, Counts()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; a summary always is."""
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
        """End the thread that waits to write a summary."""
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
    """Leave out lines that repeat at every handler of the root logger. Call it after these are set up, once per process."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, RepeatedLines) for one in handler.filters):
            repeated = RepeatedLines(handler.handle)
            handler.addFilter(repeated)
            atexit.register(repeated.flush)
