"""Conditions of sensors as frozen dataclasses, which validate themselves. `evaluation.py` evaluates them.

This module is imported when a DAG is parsed, so it repeats names of phases and conditions instead of importing them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rallypoint.provider.errors import OptionError, at_least_one, one_of, positive

__all__ = [
    "CONDITIONS",
    "ENDED",
    "LEVELS",
    "PHASES",
    "Condition",
    "HangCondition",
    "ProgressCondition",
    "RendezvousCondition",
    "StateCondition",
]

#: Name for any end of a job.
ENDED = "Ended"

#: Values of `StateCondition.phase`: phases of a record (supervision/record.py), or an end.
PHASES = ("Suspended", "Resuming", "Running", "Resetting", "Suspending", "Succeeded", "Failed", ENDED)

#: Values of `StateCondition.condition`: the conditions of a record.
CONDITIONS = ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources")

#: Values of `HangCondition.level`: the states of a hang (wire/hang.py).
LEVELS = ("doubt", "verdict")


class Condition:
    """Base class of conditions. Subclasses are frozen dataclasses, and raise `OptionError` for invalid values."""

    #: Name of the condition in a trigger's arguments.
    kind: ClassVar[str]

    #: Whether the condition needs live progress, which is stored only rarely.
    live: ClassVar[bool] = False

    def words(self) -> dict[str, Any]:
        """Return the condition as a trigger's argument; the opposite of `watching.read_condition`."""
        values: Any = self
        return {"kind": self.kind, **dataclasses.asdict(values)}


@dataclass(frozen=True, kw_only=True)
class StateCondition(Condition):
    """A phase, or a condition with a value; exactly one of the two is set.

    Attributes:
        phase: one of `PHASES`; "" if `condition` is set.
        condition: one of `CONDITIONS`, as in the job's record; "" if `phase` is set.
        value: expected value of the condition.
        stable_for: seconds for which the phase or condition must hold without a break.
    """

    kind: ClassVar[str] = "state"

    phase: str = ""
    condition: str = ""
    value: bool = True
    stable_for: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.phase) is bool(self.condition):
            raise OptionError("phase", self.phase, f"one of {', '.join(PHASES)}, or no value if condition is set")
        if self.phase:
            one_of("phase", self.phase, PHASES)
        else:
            one_of("condition", self.condition, CONDITIONS)
        if not isinstance(self.value, bool):
            raise OptionError("condition_value", self.value, "True or False")
        _seconds("stable_for", self.stable_for)


@dataclass(frozen=True, kw_only=True)
class RendezvousCondition(Condition):
    """A running round of a minimum size; or, with `missing_for`, the absence of such a round for some time.

    Attributes:
        min_nodes: minimum nodes of the round; 0 means 1, and with `missing_for` the maximum size of the job.
        min_world_size: minimum ranks of the round; 0 for any number.
        stable_for: seconds for which the same round must train.
        missing_for: None to wait for the round; or seconds for which, in an attempt that had a round already, fewer nodes or
            ranks train than that.
    """

    kind: ClassVar[str] = "rendezvous"

    min_nodes: int = 0
    min_world_size: int = 0
    stable_for: float = 0.0
    missing_for: float | None = None

    def __post_init__(self) -> None:
        for name in ("min_nodes", "min_world_size"):
            if getattr(self, name) != 0 or isinstance(getattr(self, name), bool):
                at_least_one(name, getattr(self, name))
        _seconds("stable_for", self.stable_for)
        if self.missing_for is not None:
            _seconds("missing_for", self.missing_for)
            if self.stable_for:
                raise OptionError(
                    "stable_for",
                    self.stable_for,
                    "0, because missing_for is set; to wait until a round is stable, omit missing_for",
                )


@dataclass(frozen=True, kw_only=True)
class ProgressCondition(Condition):
    """Exactly one of three: a step, a bound of a metric, or no newer step for some time.

    Attributes:
        min_step: minimum reported step; 0 if unused.
        metric: name of a metric whose last value must be at least `above`, or at most `below`.
        no_progress_for: seconds in which a world trains, or tries to, and no step above the highest one comes; 0 when
            something else is asked for. What a script that reports no steps does is not known, and not counted.
    """

    kind: ClassVar[str] = "progress"
    live: ClassVar[bool] = True

    min_step: int = 0
    metric: str = ""
    above: float | None = None
    below: float | None = None
    no_progress_for: float = 0.0

    def __post_init__(self) -> None:
        if sum(map(bool, (self.min_step, self.metric, self.no_progress_for))) != 1:
            raise OptionError(
                "min_step", self.min_step, "a value for exactly one of the arguments min_step, metric and no_progress_for"
            )
        if self.min_step:
            at_least_one("min_step", self.min_step)
        if self.no_progress_for:
            positive("no_progress_for", self.no_progress_for)
        if self.metric:
            if not isinstance(self.metric, str):
                raise OptionError("metric", self.metric, "a non-empty text, the name of a metric that the script reports")
            if (self.above is None) is (self.below is None):
                raise OptionError("above", self.above, "a number for exactly one of the fields above and below")
        for name in ("above", "below"):
            _number(name, getattr(self, name), wanted=bool(self.metric))


@dataclass(frozen=True, kw_only=True)
class HangCondition(Condition):
    """A hang that the coordinator suspects or has confirmed.

    A verdict is met by one that stands, and by an incident of any attempt of the present run: what was healed quickly was a
    hang, too.

    Attributes:
        level: `doubt` (also true for a verdict) or `verdict`.
        evidence: whether the finding contains all data of the incidents: ranks, stacks.
    """

    kind: ClassVar[str] = "hang"

    level: str = "verdict"
    evidence: bool = False

    def __post_init__(self) -> None:
        one_of("level", self.level, LEVELS)


def _number(name: str, value: object, *, wanted: bool) -> None:
    if value is None:
        return
    if not wanted:
        raise OptionError(name, value, "no value, because the field metric is not set")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise OptionError(name, value, "a finite number")


def _seconds(field_name: str, value: object) -> None:
    """Raise `OptionError` unless `value` is a number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise OptionError(field_name, value, "a number of seconds, 0 or more")
