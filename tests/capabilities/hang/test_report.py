"""Metrics and status lines of hang detection."""

from __future__ import annotations

from rallypoint.capabilities.hang.report import facts, gauges
from rallypoint.wire.fence import Fence
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus


def test_a_doubt_is_told_with_its_silence() -> None:
    """As a state and as seconds, and as a line of the status."""
    doubt = Hang(round=5, state=HangState.DOUBT, quiet_since=100.0, since=990.0, reason="no progress")
    fields = {"job": "digits", "uid": "u", "fence": Fence(attempt=1), "state": JobState.RUNNING, "updated_at": 1000.0}
    state, seconds = gauges(build(JobStatus, **fields, hang=doubt))

    assert (state.value, seconds.value) == ({("state", "doubt"): 1.0, ("state", "verdict"): 0.0}, 900.0)
    assert list(facts(build(JobStatus, **fields, hang=doubt))) == [("hang", "doubt: no progress")]
    assert list(facts(build(JobStatus, **fields))) == []
