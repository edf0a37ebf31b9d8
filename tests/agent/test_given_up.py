"""Members of the last world that a supervisor has found lost are not awaited by the coordinator that takes over."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.rendezvous.peers import TAKEOVER
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentState
from rallypoint.wire.roster import LostNode, Roster
from rallypoint.wire.status import JobState
from tests.agent.test_rendezvous import report, say, start, training

LEASE = 3.0
ELASTIC = Settings(min_nodes=1, max_nodes=2, last_call=1.0, node_lease=LEASE)
LOST = (LostNode(node=1, incarnation=1),)


def taken_over() -> State:
    """Return the coordinator of term 2 at 100 s; node 0 has spoken."""
    state = start(ELASTIC, term=2, previous=rendezvous.status(training(ELASTIC), 1.0), now=100.0)
    return say(state, report(0, AgentState.RUNNING, 1), now=100.5)


def heard(state: State, now: float) -> State:
    """Node 0 has spoken until `now`."""
    return say(state, dataclasses.replace(report(0, AgentState.RUNNING, 1), sequence=int(now)), now=now)


def test_a_member_that_says_nothing_has_time_to_find_the_new_coordinator() -> None:
    """Nobody has found it lost."""
    before = heard(heard(taken_over(), 102.0), 104.0)

    assert before.state is JobState.RUNNING
    assert rendezvous.tick(heard(before, 100.0 + TAKEOVER - 1.0), 100.0 + TAKEOVER).state is JobState.FORMING


def test_one_that_is_found_lost_has_its_lease_alone() -> None:
    """So the others do not stand still for longer than they would with the coordinator that they had."""
    state = rendezvous.given_up(heard(taken_over(), 102.0), LOST)

    assert rendezvous.tick(state, 100.0 + LEASE - 0.1).state is JobState.RUNNING
    assert rendezvous.tick(state, 100.0 + LEASE).state is JobState.FORMING


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param((), id="nobody"),
        pytest.param((LostNode(node=1, incarnation=0),), id="an earlier one of its slot"),
        pytest.param((LostNode(node=0, incarnation=1),), id="who has spoken"),
        pytest.param((LostNode(node=7, incarnation=1),), id="who was no member"),
    ],
)
def test_nobody_else_is_given_up(lost: tuple[LostNode, ...]) -> None:
    """The state is the very same, so nothing follows."""
    state = taken_over()

    assert rendezvous.given_up(state, lost) is state


def test_to_be_told_twice_changes_nothing() -> None:
    """The coordinator looks each half second."""
    state = rendezvous.given_up(taken_over(), LOST)

    assert rendezvous.given_up(state, LOST) is state


def test_the_roster_tells_who_is_lost() -> None:
    """On the wire as in the supervisor."""
    roster = Roster(attempt=1, term=2, lost=LOST)

    assert codec.loads(Roster, codec.dumps(roster)) == roster
