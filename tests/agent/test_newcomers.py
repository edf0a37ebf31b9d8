"""Agents that join a running world: the others regroup when they are ready, and not before."""

from __future__ import annotations

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous import newcomers
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.wire.messages import AgentState, Regroup
from rallypoint.wire.status import JobState
from tests.agent.fakes import new_state, report

RUNNING = AgentState.RUNNING
PATIENT = 1000.0
ELASTIC = Settings(min_nodes=1, max_nodes=4, last_call=5.0, node_lease=PATIENT)


def hear(state: State, *reports, now: float) -> State:
    for one in reports:
        state = rendezvous.receive(state, one, now)
    return state


def trains(settings: Settings = ELASTIC, nodes: int = 2) -> State:
    state = hear(new_state(settings, now=0.0), *(report(node, ready=False) for node in range(nodes)), now=0.0)
    state = rendezvous.tick(state, 5.0)
    state = hear(state, *(report(node, RUNNING, round=1) for node in range(nodes)), now=6.0)
    assert (state.state, len(state.world)) == (JobState.RUNNING, nodes)
    return state


def events(state: State) -> list[str]:
    return [event.kind for event in state.events]


def test_the_first_world_takes_agents_that_are_not_ready() -> None:
    """Nothing trains yet, so nothing is won by waiting."""
    assert len(trains(nodes=4).world) == 4


def test_the_world_trains_on_while_a_newcomer_prepares() -> None:
    """Nobody is told to regroup before its report says that it is ready."""
    state = hear(trains(), report(2, ready=False), now=10.0)
    state = rendezvous.tick(state, 60.0)
    assert (state.state, rendezvous.answer(state, "agent-0")) == (JobState.RUNNING, None)
    assert events(state)[-1] == "prepares"
    state = hear(state, report(2, ready=True), now=61.0)
    assert isinstance(rendezvous.answer(state, "agent-0"), Regroup)


def test_a_newcomer_of_an_older_version_joins_at_once() -> None:
    """Its report does not tell whether it is ready."""
    assert isinstance(rendezvous.answer(hear(trains(), report(2), now=10.0), "agent-0"), Regroup)


def test_a_newcomer_that_is_never_ready_joins_as_it_is_and_is_named() -> None:
    """After a bound; the story names the node, once."""
    state = hear(trains(), report(2, ready=False), now=10.0)
    limit = 10.0 + newcomers.READY_WITHIN
    assert rendezvous.deadline(state) == limit
    state = hear(state, report(2, ready=False), now=limit - 1)
    assert state.state is JobState.RUNNING
    state = rendezvous.tick(state, limit)
    assert (state.state, events(state)[-3:]) == (JobState.FORMING, ["prepares", "unready", "regroup"])
    told = next(event.detail for event in state.events if event.kind == "unready")
    assert told == "node 2 on 127.0.0.1 is not prepared after 180 s; it joins anyway"
    state = hear(state, report(2, ready=False), report(0, round=1), report(1, round=1), now=limit + 1)
    assert (len(state.world), events(state).count("unready")) == (3, 1)


def test_newcomers_that_prepare_at_the_same_time_join_together() -> None:
    """One regroup for both."""
    state = hear(trains(), report(2, ready=False), report(3, ready=False), now=10.0)
    state = hear(state, report(2, ready=True), now=11.0)
    assert (state.state, rendezvous.deadline(state)) == (JobState.RUNNING, 16.0)
    state = hear(state, report(3, ready=True), now=12.0)
    assert state.state is JobState.FORMING
    state = hear(state, report(0, round=1), report(1, round=1), now=12.5)
    assert [member.node for member in state.world] == [0, 1, 2, 3]


def test_a_newcomer_that_is_ready_waits_for_the_other_no_longer_than_the_last_call() -> None:
    """The other joins with a round of its own."""
    state = hear(trains(), report(2, ready=False), report(3, ready=False), now=10.0)
    state = rendezvous.tick(hear(state, report(2, ready=True), now=11.0), 16.0)
    assert state.state is JobState.FORMING
    state = hear(state, report(0, round=1), report(1, round=1), now=16.5)
    assert [member.node for member in state.world] == [0, 1, 2]
    joined = [report(node, RUNNING, round=2) for node in range(3)]
    state = hear(state, *joined, report(3, ready=True), now=20.0)
    assert state.state is JobState.FORMING


def test_a_full_world_waits_for_no_one_who_still_prepares() -> None:
    """There is no place for the other."""
    settings = Settings(min_nodes=1, max_nodes=3, last_call=5.0, node_lease=PATIENT)
    state = hear(trains(settings), report(2, ready=False), report(3, ready=False), report(2, ready=True), now=10.0)
    assert state.state is JobState.FORMING


def test_a_world_that_lost_a_node_goes_on_while_its_replacement_prepares() -> None:
    """The survivors train without it, and regroup once more when it is ready."""
    state = rendezvous.disconnected(trains(nodes=3), "agent-2", 10.0)
    state = rendezvous.tick(state, 10.1)
    state = hear(state, report(2, agent="agent-2.2", incarnation=2, ready=False), now=10.2)
    state = hear(state, report(0, round=1), report(1, round=1), now=10.3)
    assert (state.state, [member.node for member in state.world]) == (JobState.RUNNING, [0, 1])
    state = hear(state, report(0, RUNNING, round=2), report(1, RUNNING, round=2), now=11.0)
    assert state.state is JobState.RUNNING
    state = hear(state, report(2, agent="agent-2.2", incarnation=2, ready=True), now=14.0)
    assert state.state is JobState.FORMING


def test_a_world_that_is_too_small_waits_for_nothing() -> None:
    """Where nothing can train without the newcomer, it starts at once, as quickly as it can."""
    settings = Settings(min_nodes=2, max_nodes=2, last_call=5.0, node_lease=PATIENT)
    state = rendezvous.tick(rendezvous.disconnected(trains(settings), "agent-1", 10.0), 10.1)
    state = hear(state, report(0, round=1), report(1, agent="agent-1.2", incarnation=2, ready=False), now=11.0)
    assert (state.state, len(state.world), state.fence.round) == (JobState.RUNNING, 2, 2)


@pytest.mark.parametrize("unit", [2])
def test_a_newcomer_without_a_partner_disturbs_nobody_and_nothing_is_due(unit: int) -> None:
    """A world that would not grow is left alone, and nothing wakes the coordinator for it."""
    settings = Settings(min_nodes=2, max_nodes=4, node_unit=unit, last_call=5.0, node_lease=PATIENT)
    state = hear(trains(settings), report(2, ready=True), report(3, ready=False), now=10.0)
    state = rendezvous.tick(state, 100.0)
    assert state.state is JobState.RUNNING
    assert rendezvous.deadline(state) == 10.0 + newcomers.READY_WITHIN
