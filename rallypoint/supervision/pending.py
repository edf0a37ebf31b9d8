"""Nodes that exist and do not run: `pending_timeout` and `pending_fail_strategy`, exactly as DLRover's document has them. Pure.

-1: there is no check and no clock. 0: nobody is judged, and the time-out is a warning. 1: the job fails when fewer than
`min_nodes` run for the whole time-out while others are pending. 2: it fails when any node is pending for as long. A node that
waits for quota is not pending.
"""

from __future__ import annotations

import dataclasses

from rallypoint.supervision import clocks, endings
from rallypoint.supervision.deadline import Deadline
from rallypoint.supervision.turn import Step, Turn, over

__all__ = ["judge"]

_DISABLED, _WARN, _NECESSARY, _ALL = -1, 0, 1, 2
_WARNING = "pending"


def judge(turn: Turn) -> Step:
    """Judge the nodes that are pending."""
    strategy, timeout = turn.policy.pending_fail_strategy, turn.policy.pending_timeout
    if strategy == _DISABLED or timeout == 0 or turn.policy.wrapped:
        return Step(record=turn.record)
    if strategy == _NECESSARY:
        return _necessary(turn, timeout)
    oldest = turn.census.oldest_pending
    if oldest is None or (strategy == _WARN and _WARNING in turn.record.warned):
        return Step(record=turn.record)
    at = oldest + timeout
    if turn.record.clock < at:
        then = "the job fails (PendingTimeout)" if strategy == _ALL else "a warning; no further effect"
        return Step(record=turn.record, deadlines=(Deadline(at=at, clock="pending", then=then),))
    if strategy == _ALL:
        return _fail(turn, f"pending_fail_strategy {_ALL}: every node must run")
    record = dataclasses.replace(turn.record, warned=(*turn.record.warned, _WARNING))
    return Step(record=record.with_history("pending-timeout", f"{_what(turn)} for {timeout:g} s; no effect (strategy 0)"))


def _necessary(turn: Turn, timeout: float) -> Step:
    """The clock runs while too few nodes run and others are pending: a loss late in a run does not inherit an old wait."""
    census, record = turn.census, turn.record
    running = census.running + census.succeeded
    if census.oldest_pending is None or running >= turn.policy.min_nodes:
        return Step(record=clocks.stop(record, "pending"))
    record = clocks.run(record, "pending")
    left = over(record, "pending", timeout, "the job fails (PendingTimeout)")
    if left is not None:
        return Step(record=record, deadlines=(left,))
    why = f"pending_fail_strategy {_NECESSARY}: {running} of at least {turn.policy.min_nodes} nodes run"
    return _fail(turn.with_record(record), why)


def _fail(turn: Turn, why: str) -> Step:
    record = turn.record.unhealthy("PendingTimeout")
    message = f"{_what(turn)} for {turn.policy.pending_timeout:g} s (pending_timeout); {why}"
    return endings.fail(turn.with_record(record), "PendingTimeout", message)


def _what(turn: Turn) -> str:
    waiting = [str(s.node) for s in turn.census.slots if s.pending_clock is not None]
    return f"node {waiting[0]} is pending" if len(waiting) == 1 else f"nodes {', '.join(waiting)} are pending"
