"""State of the pre-check operators, and its change by their results. Pure.

The operators run one after the other. An operator that does not pass runs again after its own interval: as often as its
`get_retry_times` returns, or until the time limit of all operators. Its actions are carried out after each run; if it limits
its runs, only after the last one. The first operator that does not pass in its last run ends the attempt.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rallypoint.wire.pre_check import PreCheck, PreCheckOp, PreCheckState

__all__ = ["SPARE", "Action", "ActionKind", "Answer", "Operator", "PreChecks", "answered", "begun", "is_last", "may_ask_until"]

#: Seconds beyond `pending_timeout` that all operators together may take, as in DLRover.
SPARE = 600.0

_OVER = (PreCheckState.PASSED, PreCheckState.BYPASSED)


class ActionKind(str, enum.Enum):
    """Kinds of actions of an operator, with DLRover's names."""

    NOTHING = "no_action"
    EVENT = "event"
    ABORT = "job_abortion"
    RELAUNCH = "relaunch_worker"


@dataclass(frozen=True, kw_only=True)
class Action:
    """An action that an operator requests; `node` is the number of the node, -1 for none."""

    kind: ActionKind
    node: int = -1
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A loaded operator: seconds between two runs, and the largest number of runs; None is no limit."""

    interval: float
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of one run of an operator. `trouble`: the run failed, and `message` is the reason."""

    fine: bool
    message: str = ""
    nodes: tuple[int, ...] = ()
    actions: tuple[Action, ...] = ()
    trouble: bool = False

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Answer:
        """Return the result that the host process sent."""
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
    """State of the operators of an attempt; while `waiting`, no round may start."""

    waiting: bool = False
    told: tuple[PreCheck, ...] = field(default=())


def begun(ops: Sequence[PreCheckOp], previous: Iterable[PreCheck] = (), *, trained: bool = False) -> PreChecks:
    """Return the state of a job's operators at the start of its coordinator.

    Args:
        ops: of the job.
        previous: results that an earlier coordinator of the same attempt has published.
        trained: the attempt has had a round, so no operator runs any more.
    """
    known = tuple(previous)
    if trained or (known and all(one.state in _OVER for one in known)):
        return PreChecks(told=known)
    states = {True: PreCheckState.WAITING, False: PreCheckState.BYPASSED}
    told = tuple(PreCheck(operator=f"{op.module}.{op.name}", state=states[op.enabled]) for op in ops)
    return PreChecks(waiting=any(op.enabled for op in ops), told=told)


def may_ask_until(began: float, pending_timeout: float) -> float:
    """Return the time by which all operators must have passed."""
    return began + pending_timeout + SPARE


def is_last(operator: Operator, tries: int, now: float, until: float) -> bool:
    """Return whether a run at `now`, after `tries` other runs, is the last one of this operator."""
    return (operator.limit is not None and tries + 1 >= operator.limit) or now + operator.interval >= until


def answered(known: PreChecks, index: int, answer: Answer, *, last: bool) -> PreChecks:
    """Return the state after a result of operator `index`; `last` as in `is_last`."""
    state = PreCheckState.PASSED if answer.fine else PreCheckState.FAILED if last else PreCheckState.CHECKING
    before = known.told[index]
    after = dataclasses.replace(
        before, state=state, tries=before.tries + 1, message=answer.message, nodes=answer.nodes if not answer.fine else ()
    )
    told = (*known.told[:index], after, *known.told[index + 1 :])
    waiting = known.waiting and any(one.state not in _OVER for one in told)
    return PreChecks(waiting=waiting, told=told)
