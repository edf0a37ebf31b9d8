"""Replacements of nodes that are awaited in profile `mindcluster`: of a node that was lost, and of one that took its leave."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.wire.incident import Rung
from rallypoint.wire.messages import AgentState, Regroup
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Profile, Scheduling
from rallypoint.wire.status import JobState
from tests.agent.test_rendezvous import answers, report, say, start

WAIT = 30.0
SCHEDULING = Scheduling(
    fault_scheduling="grace",
    process_recover="on",
    recover_strategy=("recover", "elastic-training"),
    wait_reschedule_timeout=WAIT,
)
ELASTIC = Settings(min_nodes=1, max_nodes=2, last_call=5.0, node_lease=1e6)


def leaves(profile: Profile) -> State:
    """Return a job of two nodes of which one took its leave at 100, because its pod is deleted; the other regroups."""
    settings = dataclasses.replace(ELASTIC, profile=profile, scheduling=SCHEDULING)
    state = say(start(settings), report(0), report(1))
    state = say(state, *(report(node, AgentState.RUNNING, 1) for node in (0, 1)), now=1.0)
    state = say(state, report(1, AgentState.LEAVING, 1, reason="its agent was ended by SIGTERM"), now=100.0)
    assert isinstance(answers(state, "0.1")[0], Regroup)
    return say(state, report(0, round_=1), now=100.1)


def nodes(state: State) -> list[int]:
    return [member.node for member in state.world] if state.state is JobState.RUNNING else []


def test_no_smaller_world_is_formed_before_wait_reschedule_timeout() -> None:
    """A pod that is drained is awaited like one that was lost; then elastic-training goes on without it."""
    state = leaves(Profile.MINDCLUSTER)

    assert [incident.rung for incident in state.incidents] == [Rung.RECOVER]
    assert nodes(rendezvous.tick(state, 100.0 + WAIT - 1)) == []
    assert nodes(rendezvous.tick(state, 100.0 + WAIT)) == [0]


def test_the_successor_of_a_node_that_left_ends_the_wait() -> None:
    """The next world is the whole one."""
    state = say(leaves(Profile.MINDCLUSTER), report(1, incarnation=2), now=110.0)

    assert nodes(state) == [0, 1]


@pytest.mark.parametrize("profile", [Profile.LADDER, Profile.APPWRAPPER])
def test_other_profiles_await_nobody(profile: Profile) -> None:
    """There the rest goes on at once."""
    assert nodes(leaves(profile)) == [0]


def test_a_node_that_is_wanted_no_more_is_not_awaited() -> None:
    """After a resize to one node the other leaves, and the rest goes on at once."""
    settings = dataclasses.replace(ELASTIC, profile=Profile.MINDCLUSTER, scheduling=SCHEDULING)
    state = say(start(settings), report(0), report(1))
    state = say(state, *(report(node, AgentState.RUNNING, 1) for node in (0, 1)), now=1.0)
    state = rendezvous.resized(state, Size(min_nodes=1, max_nodes=1), settings, 50.0)
    state = say(state, report(1, AgentState.LEAVING, 1), now=51.0)
    state = say(state, report(0, round_=1), now=51.1)

    assert nodes(state) == [0]
