"""What a supervisor makes of a job that stopped by itself while there was none."""

from __future__ import annotations

import pytest

from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.wire.exits import Exit
from rallypoint.wire.status import JobState, Outcome, Verdict
from tests.supervision.worlds import World, phase, running

FIXED = Policy(min_nodes=2, max_nodes=2, node_replacements=3)


def stopped(*codes: int) -> World:
    """A job that trained; its coordinator is gone, and its nodes ended with these codes."""
    world = running(FIXED)
    world.ends((1, -1, 1), state=NodeState.LOST, exit_code=None)
    for slot, code in enumerate(codes):
        world.ends(world.node(slot), exit_code=code)
    return world


def test_the_verdict_of_an_orphan_is_final() -> None:
    """The coordinator stopped the job, as its policy says: it has failed, whatever is left of its retries."""
    world = running(FIXED)
    said = Verdict(outcome=Outcome.FAILED, reason="Orphaned", message="nobody has supervised the job for 1 h")
    world.tells(JobState.FAILED, verdict=said)
    world.settle(100.0)

    assert (phase(world), world.record.retries, world.record.verdict) == (Phase.FAILED, 0, said)


def test_what_the_agents_stopped_by_themselves_is_not_begun_again() -> None:
    """No coordinator was there to give the verdict: their exit codes are it."""
    world = stopped(Exit.ORPHANED, Exit.ORPHANED)
    world.settle(100.0)

    assert (phase(world), world.record.retries) == (Phase.FAILED, 0)
    assert world.record.verdict is not None
    assert world.record.verdict.reason == "Orphaned"


@pytest.mark.parametrize(
    "codes",
    [
        pytest.param((Exit.ORPHANED,), id="one node still runs"),
        pytest.param((Exit.ORPHANED, Exit.LOST_CONTACT), id="one lost contact only"),
    ],
)
def test_a_job_that_is_found_in_time_goes_on(codes: tuple[int, ...]) -> None:
    """Not all of it has stopped as an orphan: the supervisor that came back replaces what is gone."""
    world = stopped(*codes)
    world.turn(100.0)

    assert phase(world) is Phase.RUNNING
    assert world.record.verdict is None
