"""What a trainer of somebody else's logs, as progress: a few numbers by name, and the time that is left."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rallypoint.training.reporting import report_progress
from rallypoint.wire.codec import WireError

__all__ = ["Told"]

_log = logging.getLogger(__name__)

#: What a report says otherwise.
_TAKEN = frozenset({"step", "resumed_from", "checkpoint"})

#: Numbers that are told, and characters of their names: they fit into a slot of progress together, whatever they are.
_NUMBERS, _NAME = 10, 40


class Told:
    """What is told of one training. `now` is in seconds of any clock that runs evenly."""

    def __init__(self) -> None:
        self._first, self._last, self._began = 0, 0, 0.0
        self._names: set[str] = set()
        self._step = 0

    def begin(self, step: int, last: int, *, now: float) -> None:
        """Training goes on after `step`, until `last`; 0 where that is not known."""
        self._first, self._last, self._began, self._step = step, last, now, step

    def step(self, step: int, *, now: float, epoch: float | None) -> None:
        """Report that `step` steps are done."""
        self._step = step
        known: dict[str, float] = {} if epoch is None else {"epoch": round(epoch, 4)}
        if self._last > 0 and step > self._first:
            left = (now - self._began) / (step - self._first) * (self._last - step)
            known |= {"total_steps": self._last, "eta_seconds": round(max(left, 0.0), 1)}
        self._report(known)

    def metrics(self, numbers: Mapping[str, float]) -> None:
        """Report numbers beside the step that was last; the first few names that come are those that are told."""
        chosen = {name: value for name, value in numbers.items() if self._may(name)}
        if chosen and self._step:
            self._report(chosen)

    def _may(self, name: str) -> bool:
        if len(name) <= _NAME and len(self._names - {name}) < _NUMBERS and name not in _TAKEN:
            self._names.add(name)
        return name in self._names

    def _report(self, numbers: Mapping[str, Any]) -> None:
        try:
            report_progress(self._step, **numbers)
        except WireError as error:  # the script's own reports may have filled the slot; that must not end its training
            _log.debug("this worker cannot report the metrics of this step: %s; it reports only the number of the step", error)
            report_progress(self._step)
