"""The words about pre-check operators: which classes are asked before training begins, and what they said."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["BUILT_IN_MODULE", "NO_PRE_CHECK", "PreCheck", "PreCheckOp", "PreCheckState"]

#: Where DLRover has its own operators. Those names mean ours, whether DLRover is installed or not.
BUILT_IN_MODULE = "dlrover.python.master.diagnosis.precheck_operator"

#: DLRover's operator that finds nothing, which is also what a job has that names none.
NO_PRE_CHECK = "NoPreCheckOperator"


@dataclass(frozen=True, kw_only=True)
class PreCheckOp:
    """One entry of `pre_check_ops`: the class `name` of `module`; one that is not `enabled` is bypassed."""

    module: str
    name: str
    enabled: bool = True


class PreCheckState(str, enum.Enum):
    """Where an operator stands."""

    WAITING = "waiting"  #: others come before it
    CHECKING = "checking"  #: it is asked, or waits to be asked again
    PASSED = "passed"  #: it found nothing
    BYPASSED = "bypassed"  #: its entry says false: it is not even loaded
    FAILED = "failed"  #: it ended the attempt


@dataclass(frozen=True, kw_only=True)
class PreCheck:
    """What is known of one operator.

    Attributes:
        operator: `module.Class`, as the job has it.
        state: where it stands.
        tries: how often it was asked.
        message: what it said last, or why it could not be asked.
        nodes: those that it found abnormal then.
    """

    neighbours: ClassVar[bool] = True

    operator: str
    state: PreCheckState = PreCheckState.WAITING
    tries: int = 0
    message: str = ""
    nodes: tuple[int, ...] = ()
