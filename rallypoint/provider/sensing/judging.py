"""Judging a job by what a sensor asked for. Pure: nothing is asked, no clock is read.

What has to be so *for a while* is counted in a memory, from one look to the next, and no longer than `Seen.gap` between two
of them: a machine that slept, or a triggerer that stood still, has not watched a job stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.provider.sensing import judging_hang, judging_progress, judging_state, judging_world
from rallypoint.provider.sensing.conditions import (
    Condition,
    HangCondition,
    ProgressCondition,
    RendezvousCondition,
    StateCondition,
)
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.seen import Memory, Seen
from rallypoint.wire import codec

__all__ = ["judge", "read_condition"]

_JUDGES: dict[type[Condition], Any] = {
    HangCondition: judging_hang.judge,
    ProgressCondition: judging_progress.judge,
    RendezvousCondition: judging_world.judge,
    StateCondition: judging_state.judge,
}


def judge(condition: Condition, name: str, seen: Seen, memory: Memory) -> tuple[Finding, Memory]:
    """Say whether a job is where it is expected, may still come there, or cannot any more."""
    record = seen.record
    if record is None:
        if memory.uid:
            return Finding(found=Found.IMPOSSIBLE, text=f"job {name} was deleted", values={"job": name}), memory
        return Finding(found=Found.WAITING, text=f"job {name!r} does not exist yet"), memory
    if record.uid != memory.uid:
        memory = Memory(uid=record.uid)  # submitted anew: nothing of the other one counts
    status = seen.status
    mine = status if status is not None and status.uid == record.uid and status.fence.attempt == record.attempt else None
    judged: tuple[Finding, Memory] = _JUDGES[type(condition)](condition, record, mine, seen, memory)
    return judged


def read_condition(words: Mapping[str, Any]) -> Condition:
    """Return the condition that the words mean; raises `WireError` where they mean none, `OptionError` for a wrong value."""
    kinds = {kind.kind: kind for kind in _JUDGES}
    kind = words.get("kind")
    if kind not in kinds:
        raise codec.WireError("condition.kind", kind, f"one of {', '.join(sorted(kinds))}")
    rest = {word: value for word, value in words.items() if word != "kind"}
    return codec.from_json(kinds[kind], rest, path="condition")
