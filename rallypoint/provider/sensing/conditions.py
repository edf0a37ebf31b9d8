"""What sensors wait for, as frozen values of plain words that check themselves. How it is judged is in `evaluation.py`.

This is read wherever a DAG is parsed, and so names the words of records and statuses instead of importing them.
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

#: Stands for any end of a job.
ENDED = "Ended"

#: What `StateCondition.phase` may be: phases of a record (supervision/record.py), or an end.
PHASES = ("Suspended", "Resuming", "Running", "Resetting", "Suspending", "Succeeded", "Failed", ENDED)

#: What `StateCondition.condition` may be: the conditions of a record.
CONDITIONS = ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources")

#: What `HangCondition.level` may be: the states of a hang (wire/hang.py).
LEVELS = ("doubt", "verdict")


class Condition:
    """What a job is waited for with. Leaves are frozen dataclasses of plain values, and raise `OptionError` for wrong ones."""

    #: Names the condition in a trigger's arguments.
    kind: ClassVar[str]

    #: Whether it asks for progress, which is written down seldom where writing costs somebody something.
    live: ClassVar[bool] = False

    def words(self) -> dict[str, Any]:
        """Return the condition as a trigger's argument; the opposite of `watching.read_condition`."""
        values: Any = self
        return {"kind": self.kind, **dataclasses.asdict(values)}


@dataclass(frozen=True, kw_only=True)
class StateCondition(Condition):
    """A phase, or a condition that has a value; exactly one of the two is asked for.

    Attributes:
        phase: one of `PHASES`; "" when a condition is asked for.
        condition: one of `CONDITIONS`, as it is in the job's record; "" when a phase is asked for.
        value: which value of the condition.
        stable_for: seconds for which it has to be so without a break.
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
    """A round that trains and is large enough; or, with `missing_for`, that for so long there was none.

    Attributes:
        min_nodes: nodes of the round; 0 is 1, and with `missing_for` all nodes that the job would have.
        min_world_size: ranks of the round; 0 is any number.
        stable_for: seconds for which one and the same world has to train.
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
    """Exactly one of three: a step, a metric on one side of a value, or no newer step for a while.

    Attributes:
        min_step: a step of at least this was reported; 0 when something else is asked for.
        metric: its last reported value is `above` or more, or `below` or less.
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
            raise OptionError("min_step", self.min_step, "exactly one of min_step, metric and no_progress_for")
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
    """A hang that the coordinator doubts or has judged.

    A verdict is met by one that stands, and by an incident of any attempt of the present run: what was healed quickly was a
    hang, too.

    Attributes:
        level: `doubt` (met by a verdict as well) or `verdict`.
        evidence: whether the finding tells all that is kept of the incidents: ranks, stacks.
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
