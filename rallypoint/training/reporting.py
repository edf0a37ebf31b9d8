"""Progress of this worker, written into shared memory that its agent reads: no system call per step."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, SupportsIndex

from rallypoint.training.context import own_slot
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import MAX_STEP, ProgressFile, ProgressSlot

__all__ = ["Reporter", "follow_steps", "forget", "report_progress", "report_resumed"]

#: Seconds for which the turn is waited for, which is had within microseconds.
_TURN = 0.1


def report_progress(
    step: SupportsIndex,
    *,
    resumed_from: SupportsIndex | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **metrics: float,
) -> None:
    """Say that `step` steps are done; call it once per step, on every rank.

    Outside a Rallypoint worker the arguments are checked and nothing else happens.

    Args:
        step: number of finished steps of the whole job, 0 to 2**53 - 1.
        resumed_from: the step that this process started from; kept until given again.
        checkpoint: path of the last complete checkpoint; kept until given again.
        **metrics: numbers to show, also those that are not finite, or tensors of one element (a CUDA tensor is waited for).
            Each name is kept until given again; the names of all of them together fit into 1,024 bytes of JSON.

    Raises:
        WireError: for a wrong type or value; it is also a `ValueError`.
        OSError: when the agent's progress file cannot be opened.

    """
    plain = resumed_from is None and checkpoint is None
    if plain and type(step) is int and 0 <= step <= MAX_STEP:
        quick = _quick
        if quick is not None and quick.told == _environment.get(_KEY) and quick.step(step, metrics):
            if _follower is not None:
                _follower(step)
            return
    news = ProgressSlot(
        step=_count("step", step),
        resumed_from=None if resumed_from is None else _count("resumed_from", resumed_from),
        checkpoint="" if checkpoint is None else os.fsdecode(checkpoint),
        metrics={name: _number(name, value) for name, value in metrics.items()},
    )
    _report(news, plain=plain)
    if _follower is not None and news.step is not None:
        _follower(news.step)


def follow_steps(follower: Callable[[int], None] | None) -> None:
    """Have `follower` called with each step that is reported, in the thread that reports it; the last one counts."""
    global _follower  # noqa: PLW0603  there is one training in a process
    _follower = follower


def report_resumed(step: int, checkpoint: str = "") -> None:
    """Say where this process goes on from. It is no step: a fault is healed when the next one is done."""
    _report(ProgressSlot(resumed_from=step, checkpoint=checkpoint))


class Reporter:
    """Writes one slot; what a report leaves out keeps its last value, and `liveness` counts the reports."""

    def __init__(self, path: Path, local_rank: int) -> None:
        self._file, self._local_rank = ProgressFile.open(path), local_rank
        self._slot = self._file.read(local_rank) or ProgressSlot()
        self._lock = threading.Lock()
        #: Empty while somebody writes the slot (`ProgressFile.stepper`).
        self._turn: list[None] = [None]
        #: Reports a step and metrics in a few stores to memory, and returns False where that takes a `report`.
        self.step: Callable[[int, Mapping[str, float]], bool] = self._first
        self.told = _environment.get(_KEY)

    def _first(self, step: int, metrics: Mapping[str, float]) -> bool:
        with self._alone():
            self.step = self._file.stepper(self._local_rank, self._turn)
        return self.step(step, metrics)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other thread of this process write. Who was interrupted right after taking the turn never gives it back."""
        with self._lock:
            until = monotonic() + _TURN
            while not self._take_turn() and monotonic() < until:
                sleep(0)
            try:
                yield
            finally:
                self._turn[:] = [None]

    def _take_turn(self) -> bool:
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def report(self, news: ProgressSlot, *, at: float) -> None:
        """Merge `news` into the slot; `at`: seconds since the epoch. A report that does not fit changes nothing."""
        with self._alone():
            # The quick way has told newer steps and metrics than are known here.
            old = self._file.read(self._local_rank) or self._slot
            slot = dataclasses.replace(
                old,
                step=old.step if news.step is None else news.step,
                resumed_from=old.resumed_from if news.resumed_from is None else news.resumed_from,
                checkpoint=news.checkpoint or old.checkpoint,
                metrics={**old.metrics, **news.metrics},
                liveness=old.liveness + 1,
                at=at,
            )
            self._file.write(self._local_rank, slot)
            self._slot, self.step = slot, self._first


_follower: Callable[[int], None] | None = None

# Keyed by path, not opened at import: a worker that was forked, or that lives through a round, gets a new path.
_reporters: dict[str, Reporter] = {}

#: The last of them, for whoever reports a step and nothing else.
_quick: Reporter | None = None

# What `os.environ` keeps its values in: to ask that itself would take as long as all the rest of a report. Where it has
# nothing of the kind, every report is a slow one.
_environment: dict[object, object] = getattr(os.environ, "_data", {})
_KEY = os.fsencode(env.PROGRESS_FILE)


def forget() -> None:
    """Read anew what was reported last: the agent has prepared its file for another round."""
    global _quick  # noqa: PLW0603
    _quick = None
    _reporters.clear()


def _report(news: ProgressSlot, *, plain: bool = False) -> None:
    reporter = _current()
    if reporter is None:
        return
    # Of a step and metrics that are `plain` only their types may have stood in the way of the quick way.
    if not (plain and _quick is not None and news.step is not None and reporter.step(news.step, news.metrics)):
        reporter.report(news, at=time())


def _current() -> Reporter | None:
    global _quick  # noqa: PLW0603
    path = os.environ.get(env.PROGRESS_FILE)
    if not path:
        _quick = None
        return None
    known = _reporters.get(path)
    if known is None:
        known = Reporter(Path(path), own_slot(os.environ))
        _reporters.clear()
        _reporters[path] = known
    # The quick way writes numbers as this machine has them, the file's are little-endian.
    _quick = known if sys.byteorder == "little" else None
    return known


def _count(name: str, value: SupportsIndex) -> int:
    allowed = f"a whole number from 0 to {MAX_STEP}"
    if isinstance(value, bool):
        raise WireError(name, value, allowed)
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError) as error:  # torch raises either for a tensor that is no whole number
        raise WireError(name, value, allowed) from error
    if not 0 <= number <= MAX_STEP:
        raise WireError(name, value, allowed)
    return number


def _number(name: str, value: object) -> float:
    if isinstance(value, numbers.Real):
        return _float(name, value)
    item = getattr(value, "item", None)
    if item is None:
        raise WireError(f"metric {name}", value, "a number or a tensor of one element")
    try:
        found = item()
    except (TypeError, ValueError, RuntimeError) as error:
        raise WireError(f"metric {name}", value, "a number or a tensor of one element") from error
    return _float(name, found)


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"metric {name}", value, "a number or a tensor of one element") from error
