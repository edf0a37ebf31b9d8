from __future__ import annotations

import dataclasses

import pytest

from dags_examples.timeline import Mark, Run, Sample, draw, tell, trace, when
from rallypoint.wire.status import Event
from tests.provider.records import status, succeeded

#: Rounds 1 and 2 of a run whose worker was killed at 108; the job of `records` was submitted at 100 and ended at 121.5.
SEEN = (
    Sample(at=104.0, step=50, round=1),
    Sample(at=106.0, step=100, round=1),
    Sample(at=108.1, step=152, round=1),
    Sample(at=112.0, step=141, round=2),
    Sample(at=116.0, step=161, round=2),
    Sample(at=120.0, step=300, round=2),
)
KILLED = Mark(at=108.0, kind="killed", text="SIGKILL to rank 3")


@pytest.fixture
def run() -> Run:
    """The run that the records tell."""
    events = (
        Event(at=102.0, kind="round", detail="round 1: 2 nodes, 4 ranks", round=1),
        Event(at=109.0, kind="round", detail="round 2: 2 nodes, 4 ranks", round=2),
        Event(at=112.0, kind="resumed", detail="step 141, from 140", round=2),
        Event(at=109.5, kind="coordinator", detail="term 2 took over", round=2),
    )
    return trace("killed", succeeded(), dataclasses.replace(status(0, 1), events=events), SEEN, KILLED)


def test_the_timeline_tells_what_happened_when(run):
    """From the submission to the end, in order, in seconds since the submission."""
    assert [(mark.at, mark.kind) for mark in run.marks] == [
        (0.0, "submitted"),
        (2.0, "round"),
        (6.0, "milestone"),
        (8.0, "killed"),
        (9.0, "round"),
        (10.0, "detected"),
        (12.0, "resumed"),
        (21.5, "finished"),
    ]
    text = tell(run)
    assert "  12.00 s  resumed at step 141, from 140" in text
    assert "  21.50 s  succeeded at step 300: all workers ended with 0" in text


def test_the_time_lost_lasts_until_the_step_of_the_kill_is_reached_again(run):
    """Step 152 is between two reports of the second round; the killed run had reached it at the kill."""
    assert run.lost == pytest.approx(112.0 + 4.0 * 11 / 20 - 108.0)


@pytest.mark.parametrize(
    ("step", "after", "at"),
    [
        pytest.param(75, 0, 105.0, id="between two reports"),
        pytest.param(100, 0, 106.0, id="at a report"),
        pytest.param(145, 1, 112.8, id="in a later round"),
        pytest.param(130, 1, 112.0, id="where a later round began"),
        pytest.param(400, 0, None, id="never"),
    ],
)
def test_when_a_step_was_reached(step, after, at):
    """Read off a straight line between two reports of one round, never across a gap."""
    assert when(SEEN, step, after=after) == (at if at is None else pytest.approx(at))


def test_the_picture_is_written(run, tmp_path):
    """Both runs in one PNG."""
    calm = Run(title="calm", samples=run.samples[:3], marks=run.marks[:2], seconds=15.0, lost=None)

    draw([calm, run], tmp_path / "timeline.png", footer="equal weights")

    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
