"""Which reports cannot be taken, and why. Pure."""

from __future__ import annotations

from rallypoint.agent.rendezvous.peers import State, holder
from rallypoint.wire.messages import MESSAGES_VERSION, AgentReport, Refusal

__all__ = ["refusal"]


def refusal(state: State, report: AgentReport) -> Refusal | None:
    """Return why a report cannot be taken, or None when it can."""
    if abs(report.version - MESSAGES_VERSION) > 1:
        return Refusal(
            fence=state.fence,
            reason=f"protocol version {report.version} is not supported; expected {MESSAGES_VERSION}",
            stale=True,
        )
    if report.job != state.job:
        return Refusal(
            fence=state.fence,
            reason=f"the agent belongs to job {report.job!r}, but this coordinator to job {state.job!r}",
            stale=True,
        )
    if report.fence.attempt not in (0, state.fence.attempt):
        reason = f"the agent belongs to attempt {report.fence.attempt}, but this coordinator to attempt {state.fence.attempt}"
        return Refusal(fence=state.fence, reason=reason, stale=report.fence.attempt < state.fence.attempt)
    if report.fence.term > state.fence.term:
        reason = f"coordinator term {report.fence.term} has replaced this coordinator (term {state.fence.term})"
        return Refusal(fence=state.fence, reason=reason, stale=False)
    return _slot_refusal(state, report)


def _slot_refusal(state: State, report: AgentReport) -> Refusal | None:
    if report.node < 0 or report.agent in state.peers:
        return None
    held = holder(state, report.node)
    if held is None or report.incarnation > held.incarnation:
        return None
    if report.incarnation < held.incarnation:
        newer, older = f"incarnation {held.incarnation}", f"incarnation {report.incarnation}"
        reason = f"a newer process of node {report.node} ({newer}) has replaced this agent ({older})"
        return Refusal(fence=state.fence, reason=reason, stale=True)
    if held.gone_at is not None:
        return None
    reason = f"node {report.node} is already used by agent {held.report.agent} on {held.report.host}"
    return Refusal(fence=state.fence, reason=reason, stale=False)
