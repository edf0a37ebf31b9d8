from __future__ import annotations

import dataclasses

import pytest

from rallypoint.cli.document import JobDocument
from rallypoint.cli.screens import STEP_PERIOD, news
from rallypoint.wire.status import Event, Progress
from tests.cli.samples import NOW, PLAN, START, ZONE, begun, submitted, training


def tell(before, after, *, step_told_at: float = 0.0, now: float = NOW):
    return news(before, after, step_told_at=step_told_at, now=now, zone=ZONE)


SUBMITTED = JobDocument(record=submitted(), plan=PLAN)
TRAINING = JobDocument(record=begun().with_history("running", "nodes created: 2 of 2"), plan=PLAN, status=training())


def at_step(step: int) -> JobDocument:
    progress = Progress(step=step, metrics={"loss": 0.5}, at=NOW)
    return dataclasses.replace(TRAINING, status=dataclasses.replace(training(), progress=progress))


def test_at_first_everything_is_news():
    """The history of the record and the events of the coordinator, in the order in which they happened."""
    lines, told_at = tell(None, TRAINING)

    assert lines == (
        "14:00:00  submitted: by cli",
        "14:00:05  round: 2 nodes, 4 ranks",
        "14:02:13  running: nodes created: 2 of 2",
        "14:02:12  step: 150 loss=0.31 accuracy=0.953125",
    )
    assert told_at == NOW


def test_nothing_is_told_twice():
    """Looking again at the same thing says nothing."""
    assert tell(TRAINING, TRAINING, step_told_at=NOW)[0] == ()
    assert tell(SUBMITTED, TRAINING)[0][0] == "14:00:05  round: 2 nodes, 4 ranks"


@pytest.mark.parametrize(
    ("later", "lines"),
    [
        pytest.param(STEP_PERIOD - 1, (), id="soon after the last one"),
        pytest.param(STEP_PERIOD, ("14:02:13  step: 160 loss=0.5",), id="after the period"),
    ],
)
def test_steps_are_told_now_and_then(later, lines):
    """A log does not fill with steps."""
    assert tell(at_step(150), at_step(160), step_told_at=NOW - later)[0] == lines


@pytest.mark.parametrize(
    ("apart", "times"),
    [
        pytest.param(2.0, 1, id="a moment later"),
        pytest.param(600.0, 2, id="ten minutes later it has happened again"),
    ],
)
def test_what_coordinator_and_supervisor_both_tell_is_one_line(apart, times):
    """The verdict reaches the record a moment after the coordinator tells it."""
    status = dataclasses.replace(training(), events=(Event(at=START, kind="failed", detail="all is spent"),))
    told = JobDocument(record=submitted(), plan=PLAN, status=status)
    record = dataclasses.replace(submitted(), last_now=START + apart).with_history("failed", "all is spent")
    both = dataclasses.replace(told, record=record)

    for before in (None, told):
        lines, _ = tell(before, both)
        assert sum("failed" in line for line in lines) == times - (before is told)
