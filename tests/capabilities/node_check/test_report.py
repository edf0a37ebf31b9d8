"""Metrics and status lines of the node check."""

from __future__ import annotations

from rallypoint.capabilities.node_check.report import activity, facts, gauges
from rallypoint.capabilities.node_check.wire import StatusSection
from rallypoint.wire.check import CheckState, NodeCheck, NodeFound, NodeVerdict
from rallypoint.wire.fence import Fence
from rallypoint.wire.sections import Sections
from rallypoint.wire.status import JobState, JobStatus


def status(state: CheckState) -> JobStatus:
    """Return the status of a job whose check found one node faulty and two slow."""
    nodes = [
        NodeFound(node=n, incarnation=1, host="h", verdict=v)
        for n, v in enumerate((NodeVerdict.FAULT, NodeVerdict.STRAGGLER, NodeVerdict.STRAGGLER, NodeVerdict.GOOD))
    ]
    check = NodeCheck(number=1, level=1, state=state, reason="asked for", started_at=1.0, nodes=tuple(nodes), count=4)
    sections = Sections(StatusSection(check=check))
    return JobStatus(job="digits", uid="u", fence=Fence(attempt=1), state=JobState.FORMING, sections=sections)


def test_bad_nodes_are_counted_by_verdict() -> None:
    """In the metrics and in the line of the status."""
    [gauge] = gauges(status(CheckState.PASSED))

    assert gauge.value == {("verdict", "straggler"): 2, ("verdict", "fault"): 1, ("verdict", "unknown"): 0}
    assert list(facts(status(CheckState.PASSED))) == [
        ("node check", "4 nodes are checked: node 0 on h faulty; node 1 on h, 2 on h slow")
    ]


def test_a_running_check_is_the_activity_of_the_job() -> None:
    """Until it is over."""
    assert activity(status(CheckState.RUNNING)) == "4 nodes are being checked"
    assert activity(status(CheckState.PASSED)) == ""
