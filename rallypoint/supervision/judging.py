"""The verdict on a node that has ended, in the words of the record. Pure."""

from __future__ import annotations

from rallypoint.supervision.census import exit_codes
from rallypoint.supervision.observation import NodeSeen
from rallypoint.supervision.policy import Policy
from rallypoint.wire.incident import Answer, Cause, FaultKind

__all__ = ["judge"]


def judge(node: NodeSeen, policy: Policy) -> tuple[FaultKind, Answer, Cause, str]:
    """Return what a node's end was, what it asks for, which budget pays, and the rule."""
    codes = [code for code in exit_codes(node) if code]
    if any(code in policy.terminal_exit_codes for code in codes):
        return FaultKind.EXIT_CODE, Answer.FAIL_NOW, Cause.NODE, "terminal_exit_codes"
    if policy.retryable_exit_codes and any(code not in policy.retryable_exit_codes for code in codes):
        return FaultKind.EXIT_CODE, Answer.FAIL_NOW, Cause.NODE, "not in retryable_exit_codes"
    kind = node.kind or (FaultKind.EXIT_CODE if codes else FaultKind.NODE_LOST)
    cause = Cause.PREEMPTION if kind is FaultKind.PREEMPTED else Cause.NODE
    return kind, Answer.RETRY_ELSEWHERE, cause, ""
