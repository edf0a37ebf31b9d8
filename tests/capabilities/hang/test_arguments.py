"""DLRover's arguments of hang detection, from the annotation to their effect."""

from __future__ import annotations

import pytest

from rallypoint.agent.node.parts import restarts
from rallypoint.capabilities.hang.state import HangSettings
from rallypoint.capabilities.hang.wire import PlanSection
from rallypoint.job import JobError
from rallypoint.wire.hang import HangState
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobState
from tests.agent.test_argument_effects import plan, settings
from tests.agent.test_options import read
from tests.agent.test_rendezvous import say
from tests.capabilities.hang.jobs import own, watched
from tests.capabilities.hang.test_rounds import found, quiet, says


def kept(**arguments: object) -> HangSettings:
    """Return the settings of a job with these arguments."""
    return replaced(HangSettings.from_plan(plan(**arguments)), warmup_grace=60.0)


@pytest.mark.argument("hang_detection")
@pytest.mark.difference(2)
@pytest.mark.parametrize(
    ("action", "incidents", "state"),
    [
        pytest.param(0, 0, JobState.RUNNING, id="0 logs"),
        pytest.param(1, 1, JobState.RUNNING, id="1 notifies"),
        pytest.param(2, 1, JobState.FORMING, id="2 restarts the workers"),
    ],
)
def test_what_a_hang_leads_to(action: int, incidents: int, state: JobState) -> None:
    """A line of the story, an incident, or a restart; 0 is allowed, and 7 is not."""
    hang = kept(hang_detection=action, hang_downtime=1)
    hung = quiet(say(watched(hang, settings(nnodes=2)), says(0), says(1), now=1.0), 1.0, 61.0)
    judged = say(hung, says(0, evidence=found(0)), says(1, evidence=found(1, culprit=True)), now=62.0)

    assert (len(judged.incidents), judged.state) == (incidents, state)
    with pytest.raises(
        JobError,
        match="hang_detection: '7' is not allowed; expected one of 0, 1, 2",
    ):
        plan(hang_detection=7)


@pytest.mark.argument("hang_downtime")
@pytest.mark.difference(3)
def test_so_many_minutes_without_life_are_a_hang() -> None:
    """30 of them by default; 1 is one and not two; 0 is off."""
    hang = kept(hang_downtime=1)
    doubt = quiet(say(watched(hang, settings(nnodes=2)), says(0), says(1), now=1.0), 1.0, 31.0)
    off = kept(hang_downtime=0)

    assert own(doubt).hang is not None
    assert own(doubt).hang.state is HangState.DOUBT
    assert own(quiet(say(watched(off, settings(nnodes=2)), says(0), says(1), now=1.0), 1.0, 4000.0)).hang is None
    assert (kept().hang_downtime, off.hang_downtime) == (1800.0, 0.0)


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        pytest.param("t.py", "hang_downtime", 1800.0, id="half an hour is a hang"),
        pytest.param("--hang-downtime 0.5 t.py", "hang_downtime", 30.0, id="hang, in minutes"),
        pytest.param("--hang_detection 2 t.py", "hang_detection", 2, id="hangs are answered"),
    ],
)
def test_a_flag_of_a_run_by_hand_reaches_the_plan(line: str, field: str, expected: object) -> None:
    """Each flag has its effect."""
    assert getattr(PlanSection.of(read(line).plan), field) == expected


def test_a_zygote_pays_where_hangs_are_answered_by_a_restart() -> None:
    """Also in a job whose faults are not."""
    once = replaced(plan(nnodes=1), max_restarts=0)

    assert [restarts(replaced(once, hang_detection=action)) for action in (1, 2)] == [False, True]
