"""What follows from the answers of pre-check operators. Pure.

They are asked one after the other. One that finds something is asked again after its own interval: as often as it says itself
(`get_retry_times`), or until the time for all of them is over. What it wants to be done is done each time, or where it says how
often it may be asked, at the last time. The first that is still not content then ends the attempt.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rallypoint.wire.pre_check import PreCheck, PreCheckOp, PreCheckState

__all__ = ["SPARE", "Action", "ActionKind", "Answer", "Operator", "PreChecks", "answered", "begun", "is_last", "may_ask_until"]

#: Seconds that there are beyond `pending_timeout` for all operators together, as in DLRover.
SPARE = 600.0

_OVER = (PreCheckState.PASSED, PreCheckState.BYPASSED)


class ActionKind(str, enum.Enum):
    """What an operator may want, by the names that DLRover has for it."""

    NOTHING = "no_action"
    EVENT = "event"
    ABORT = "job_abortion"
    RELAUNCH = "relaunch_worker"


@dataclass(frozen=True, kw_only=True)
class Action:
    """One wish of an operator; `node` is the slot that it is about, -1 for none."""

    kind: ActionKind
    node: int = -1
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator that was loaded: seconds between two questions, and how often it wants to be asked; None is no limit."""

    interval: float
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an operator says. `trouble`: it could not say anything, and `message` tells why."""

    fine: bool
    message: str = ""
    nodes: tuple[int, ...] = ()
    actions: tuple[Action, ...] = ()
    trouble: bool = False

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Answer:
        """Return the answer that came over the line."""
        actions = (
            Action(kind=ActionKind(one["kind"]), node=int(one["node"]), message=str(one["message"])) for one in said["actions"]
        )
        return cls(
            fine=bool(said["fine"]),
            message=str(said["message"]),
            nodes=tuple(map(int, said["nodes"])),
            actions=tuple(actions),
            trouble=bool(said["trouble"]),
        )


@dataclass(frozen=True, kw_only=True)
class PreChecks:
    """Where the operators of an attempt stand: `waiting` while no round may be closed because of them."""

    waiting: bool = False
    told: tuple[PreCheck, ...] = field(default=())


def begun(ops: Sequence[PreCheckOp], previous: Iterable[PreCheck] = (), *, trained: bool = False) -> PreChecks:
    """Return where the operators of a job stand when its coordinator begins.

    Args:
        ops: of the job.
        previous: what the coordinator before this one had told of the same attempt.
        trained: the attempt has had a round: nobody is asked any more.
    """
    known = tuple(previous)
    if trained or (known and all(one.state in _OVER for one in known)):
        return PreChecks(told=known)
    states = {True: PreCheckState.WAITING, False: PreCheckState.BYPASSED}
    told = tuple(PreCheck(operator=f"{op.module}.{op.name}", state=states[op.enabled]) for op in ops)
    return PreChecks(waiting=any(op.enabled for op in ops), told=told)


def may_ask_until(began: float, pending_timeout: float) -> float:
    """Return when all operators must be content at the latest."""
    return began + pending_timeout + SPARE


def is_last(operator: Operator, tries: int, now: float, until: float) -> bool:
    """Return whether the question that is asked now, after `tries` others, is the last one to this operator."""
    return (operator.limit is not None and tries + 1 >= operator.limit) or now + operator.interval >= until


def answered(known: PreChecks, index: int, answer: Answer, *, last: bool) -> PreChecks:
    """Return where the operators stand after an answer of that of `index`; `last` as in `is_last`."""
    state = PreCheckState.PASSED if answer.fine else PreCheckState.FAILED if last else PreCheckState.CHECKING
    before = known.told[index]
    after = dataclasses.replace(
        before, state=state, tries=before.tries + 1, message=answer.message, nodes=answer.nodes if not answer.fine else ()
    )
    told = (*known.told[:index], after, *known.told[index + 1 :])
    waiting = known.waiting and any(one.state not in _OVER for one in told)
    return PreChecks(waiting=waiting, told=told)
