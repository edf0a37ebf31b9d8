"""Metrics and status lines of the node check."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.capabilities.base import Gauge
from rallypoint.capabilities.node_check.wire import StatusSection
from rallypoint.wire.check import CheckState, NodeCheck, NodeFound, NodeVerdict
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["activity", "facts", "gauges"]

#: Verdicts that need attention.
_BAD = {NodeVerdict.STRAGGLER: "slow", NodeVerdict.FAULT: "faulty", NodeVerdict.UNKNOWN: "unclear"}


def gauges(status: JobStatus) -> Iterator[Gauge]:
    """Yield the numbers of nodes that did not pass, by verdict."""
    check = StatusSection.of(status).check
    found = {} if check is None else {("verdict", verdict.value): len(check.named(verdict)) for verdict in _BAD}
    yield Gauge(
        name="rallypoint_check_nodes",
        help="Number of nodes that did not pass the last node check, for each result.",
        value=found,
    )


def activity(status: JobStatus) -> str:
    """Return what the job does before its workers start; "" if no check runs."""
    check = StatusSection.of(status).check
    running = status.state is JobState.FORMING and check is not None and check.state is CheckState.RUNNING
    return f"{_nodes(check)} being checked" if running and check is not None else ""


def facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield a line with the result of the last check."""
    check = StatusSection.of(status).check
    if check is None:
        return
    if check.state is CheckState.RUNNING:
        yield "node check", f"{_nodes(check)} being checked ({check.reason}); {check.rounds} rounds done"
        return
    order = (NodeVerdict.FAULT, NodeVerdict.UNKNOWN, NodeVerdict.STRAGGLER)
    bad = [f"{_few(named)} {_BAD[verdict]}" for verdict in order if (named := check.named(verdict))]
    yield "node check", f"{_nodes(check)} checked: {'; '.join(bad) or 'all passed'}"


def _nodes(check: NodeCheck) -> str:
    return "1 node is" if check.count == 1 else f"{check.count} nodes are"


def _few(found: tuple[NodeFound, ...]) -> str:
    named = ", ".join(f"{one.node} on {one.host}" for one in found[:3])
    return f"node {named}{f' and {len(found) - 3} more' if len(found) > 3 else ''}"
