"""Since when nothing was heard of a job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.report.story import silence
from rallypoint.wire.fence import Fence
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.sections import build, replaced
from rallypoint.wire.status import JobState, JobStatus, Outcome, Verdict

STATUS = build(JobStatus, job="j", uid="u", fence=Fence(attempt=1), state=JobState.RUNNING, updated_at=100.0, lively_at=99.0)
SILENT = Missing(node=3, why=Absence.SILENT, since=90.0)
OVER = Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="")


@pytest.mark.parametrize(
    ("known", "age", "text"),
    [
        pytest.param({}, 0.5, "", id="all is well"),
        pytest.param({}, None, "", id="nobody knows its age"),
        pytest.param({}, 12.0, "last report 12 s ago", id="the coordinator is silent"),
        pytest.param({"state": JobState.FORMING}, 12.0, "last report 12 s ago", id="while a round forms, too"),
        pytest.param({"missing": (SILENT,)}, 1.0, "last report of node 3 11 s ago", id="a node is silent"),
        pytest.param(
            {"missing": (SILENT, dataclasses.replace(SILENT, node=4, since=91.0))},
            0.0,
            "last report of node 3 (and 1 more) 10 s ago",
            id="two are",
        ),
        pytest.param({"lively_at": 80.0}, 0.0, "last sign of life 20 s ago", id="no rank shows life"),
        pytest.param({"lively_at": 80.0, "state": JobState.FORMING}, 0.0, "", id="nobody is to show life"),
        pytest.param({"lively_at": 0.0}, 0.0, "", id="told by an older coordinator"),
        pytest.param({"lively_at": 200.0}, 0.0, "", id="a clock that went back"),
        pytest.param({"verdict": OVER}, 1000.0, "", id="it is over"),
    ],
)
def test_silence_is_said_with_its_age(known: dict[str, Any], age: float | None, text: str) -> None:
    """From five seconds on, by the clock of one machine."""
    assert silence(replaced(STATUS, **known), age) == text


def test_without_a_word_nothing_is_said() -> None:
    """A job whose coordinator has said nothing yet is shown as waiting for it."""
    assert silence(None, None) == ""
