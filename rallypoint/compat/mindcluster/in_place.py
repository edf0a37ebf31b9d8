"""Which faulty pods may stay and restart their broken process alone (MindCluster's `recover-in-place`). Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["CHECKS", "CHECK_INTERVAL", "FRESH", "InPlace", "Level", "PodFaults", "SubHealthy", "is_same_fault", "judge"]

#: A fault is answered in place while it is younger than so many seconds.
FRESH = 60.0

#: A device fault must be gone at one of so many checks, so many seconds apart.
CHECKS, CHECK_INTERVAL = 5, 3.0

_MASTER = 0


class Level(str, enum.Enum):
    """How a fault of a device or its host is to be handled, in the words of the device plugin."""

    IGNORE = "NotHandleFault"
    RESTART_REQUEST = "RestartRequest"
    RESTART_BUSINESS = "RestartBusiness"
    FREE_RESTART_DEVICE = "FreeRestartNPU"
    RESTART_DEVICE = "RestartNPU"
    SEPARATE = "SeparateNPU"
    PRE_SEPARATE = "PreSeparateNPU"
    SUB_HEALTH = "SubHealthFault"
    MANUALLY_SEPARATE = "ManuallySeparateNPU"


class SubHealthy(str, enum.Enum):
    """What a job wants done about sub-healthy devices (label subHealthyStrategy)."""

    IGNORE = "ignore"
    GRACE_EXIT = "graceExit"
    FORCE_EXIT = "forceExit"
    HOT_SWITCH = "hotSwitch"


@dataclass(frozen=True, kw_only=True)
class PodFaults:
    """Everything that is wrong with one pod.

    Attributes:
        node: its slot.
        software: a training process ended or raised.
        levels: of the faults of its devices.
        age: seconds since the first of them.
        checks: how many checks, `CHECK_INTERVAL` apart, have found a device fault still there.
    """

    node: int
    software: bool = False
    levels: frozenset[Level] = frozenset()
    age: float = 0.0
    checks: int = 0


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """Which nodes restart their broken processes and which are replaced, each in order; `reason` says why not all stay."""

    restart: tuple[int, ...] = ()
    migrate: tuple[int, ...] = ()
    reason: str = ""

    @property
    def eligible(self) -> bool:
        """Some pod may stay: `strategy.Situation.in_place`."""
        return bool(self.restart)


def is_same_fault(before: int | None, step: int | None, apart: float) -> bool:
    """Return whether a process fault is the one before once more: the rank that broke has finished no newer step since.

    `before` and `step` are its last steps at the two faults, which were `apart` seconds apart. Where one of the steps is not
    known (the script reports none), the faults are the same within `FRESH` seconds.
    """
    return apart < FRESH if before is None or step is None else step <= before


def judge(pods: Iterable[PodFaults], sub_healthy: SubHealthy = SubHealthy.IGNORE) -> InPlace:
    """Divide the faulty pods into those that stay and those that are replaced; a pod with nothing to handle is in neither."""
    ignored = {Level.IGNORE} | ({Level.SUB_HEALTH} if sub_healthy is SubHealthy.IGNORE else set())
    faulty = {pod.node: pod for pod in pods if pod.software or pod.levels - ignored}
    objections = {node: _objection(pod, ignored) for node, pod in faulty.items()}
    everyone = tuple(sorted(faulty))
    if len(faulty) > 1 and not any(pod.levels - ignored for pod in faulty.values()):
        return InPlace(migrate=everyone, reason=f"all faults are software faults, and {len(faulty)} pods have one")
    if objections.get(_MASTER):
        return InPlace(migrate=everyone, reason=f"the pod of rank 0 must be replaced: {objections[_MASTER]}")
    return InPlace(
        restart=tuple(node for node in everyone if not objections[node]),
        migrate=tuple(node for node in everyone if objections[node]),
        reason="; ".join(f"pod {node}: {objections[node]}" for node in everyone if objections[node]),
    )


def _objection(pod: PodFaults, ignored: set[Level]) -> str:
    """Return why a pod cannot stay, "" when it can."""
    handled = pod.levels - ignored
    hard = handled - {Level.RESTART_REQUEST, Level.RESTART_BUSINESS}
    if hard:
        return f"a process restart does not clear {', '.join(sorted(level.value for level in hard))}"
    if pod.age >= FRESH:
        return f"the fault is {pod.age:g} s old; the limit is {FRESH:g} s"
    if handled and pod.checks >= CHECKS:
        return f"the device fault was still present at check {pod.checks} of {CHECKS}"
    return ""
