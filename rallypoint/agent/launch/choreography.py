"""What the launcher does with `Events` when it is told to end: pause, save, stop, and nothing of it for ever.

It takes any object with the ten names, so also one that somebody else has made of `multiprocessing`'s events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from rallypoint.agent.launch.events import NAMES

__all__ = ["end_softly", "require_events"]

log = logging.getLogger("rallypoint.launch")

#: Seconds between two looks at whether the ending is to be cut short.
_SLICE = 0.1


def require_events(events: Any) -> None:
    """Raise `ValueError` for an object that is not None and has not all ten names."""
    missing = [name for name in NAMES if events is not None and not hasattr(events, name)]
    if missing:
        raise ValueError(
            f"ice_events: {type(events).__name__} has no method {missing[0]}; expected None or an object with "
            f"{', '.join(NAMES)}"
        )


def end_softly(events: Any, workers: int, *, within: float, cut_short: Callable[[], bool] = lambda: False) -> bool:
    """Have `workers` pause at a step boundary, save, and leave their loops; return whether a checkpoint was saved.

    It takes at most `within` seconds; what has not happened by then is left to SIGTERM and its grace. Workers that have not
    reached a boundary when the time is up find the order to stop there, and are not asked to save any more.
    """
    until = time.monotonic() + within
    left = lambda: until - time.monotonic()  # noqa: E731  two words for one clock
    events.resume.clear()
    events.pause.set()
    paused = _patiently(lambda seconds: _all_paused(events, workers, seconds), left, cut_short)
    events.stop_all_tasks.set()
    if paused:
        events.finished_save_checkpoint.clear()
        events.trigger_save_checkpoint.set()
    else:
        log.warning("not all %d workers reached a step boundary before the timeout; no checkpoint is saved", workers)
    events.resume.set()  # before the pause is cleared: a worker that comes late must not take it for cancelled
    events.pause.clear()
    saved = paused and _patiently(lambda seconds: bool(events.finished_save_checkpoint.wait(seconds)), left, cut_short)
    if paused and not saved:
        log.warning("the checkpoint was not saved before the timeout")
    return saved


def _all_paused(events: Any, workers: int, seconds: float) -> bool:
    counting = getattr(events, "wait_paused", None)
    return bool(counting(workers, seconds) if callable(counting) else events.paused.wait(seconds))


def _patiently(waited: Callable[[float], bool], left: Callable[[], float], cut_short: Callable[[], bool]) -> bool:
    while left() > 0 and not cut_short():
        if waited(min(_SLICE, left())):
            return True
    return False
