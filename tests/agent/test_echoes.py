"""Echoes: workers that fail because another one did. The fault is charged, and an echo only where there is no other fault."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import ECHO_GRACE, ECHO_LIMIT
from rallypoint.wire.incident import Cause
from rallypoint.wire.messages import AgentState, Regroup
from tests.agent.test_rendezvous import ELASTIC, TWO, answers, echo, killed, report, say, training


def test_the_echo_of_a_lost_node_is_not_charged() -> None:
    """A rank that fails because a node was killed is heard before the node is lost; only the node's loss counts."""
    settings = dataclasses.replace(ELASTIC, max_restarts=0)
    state = rendezvous.disconnected(training(settings, nodes=2), "agent-1.1", 50.0)
    plain = dataclasses.replace(killed(0), signal=None, exit_code=1)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(plain,)), now=50.005)
    assert state.verdict is None
    state = say(state, report(0, AgentState.WAITING, 1, failures=(plain,)), now=50.01)
    assert answers(state, "0.1") == [None], "node 1 may come back"
    state = rendezvous.tick(state, 51.0)
    assert [i.cause for i in state.incidents] == [Cause.NODE]
    assert [m.node for m in state.world] == [0]


def test_the_cause_takes_the_place_of_its_echo() -> None:
    """Node 0's rank lost its peer and is heard first; node 1 then tells that its rank was killed, and is the culprit."""
    state = training(dataclasses.replace(TWO, max_restarts=0))
    state = say(state, report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)
    assert [type(a) for a in answers(state, "0.1", "1.1")] == [Regroup, Regroup]
    assert not state.incidents
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=50.01)
    assert state.verdict is not None
    assert state.verdict.culprit == killed(1)
    assert len(state.incidents) == 1


def test_an_echo_waits_longer_for_a_member_that_has_not_reported_since() -> None:
    """The agent of the broken worker may be late, on a machine without a free core: its word is the cause and not the echo."""
    state = say(training(), report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)
    assert rendezvous.deadline(state) == 50.0 + ECHO_LIMIT
    state = rendezvous.tick(state, 50.0 + 2 * ECHO_GRACE)
    assert not state.incidents
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=53.0)
    [incident] = state.incidents
    assert incident.culprit == killed(1)


def test_an_echo_waits_longer_for_a_member_whose_round_has_not_ended() -> None:
    """Its agent reports as always, and has not noticed yet that its worker was killed."""
    state = say(training(), report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)
    state = say(state, report(1, AgentState.RUNNING, 1), now=50.1)
    state = rendezvous.tick(state, 50.0 + 2 * ECHO_GRACE)
    assert not state.incidents
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=53.0)
    [incident] = state.incidents
    assert incident.culprit == killed(1)


def test_an_echo_does_not_wait_for_ever_for_a_silent_member() -> None:
    """After the limit the echo is charged."""
    state = say(training(), report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)
    state = rendezvous.tick(state, 50.0 + ECHO_LIMIT)
    [incident] = state.incidents
    assert incident.culprit == echo(0)


@pytest.mark.parametrize("comes_back", [pytest.param(True, id="everyone is back"), pytest.param(False, id="the grace is over")])
def test_an_echo_without_a_cause_is_charged_itself(comes_back: bool) -> None:
    """What looks like an echo may be the fault: it is charged before the next round closes, or when the grace is over."""
    state = say(training(), report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)
    if comes_back:
        state = say(state, report(0, AgentState.WAITING, 1, failures=(echo(0),)), report(1, AgentState.WAITING, 1), now=50.2)
        assert state.fence.round == 2
    else:
        state = say(state, report(1, AgentState.WAITING, 1), now=50.1)
        assert rendezvous.deadline(state) == 50.0 + ECHO_GRACE
        state = rendezvous.tick(state, 51.0)
    [incident] = state.incidents
    assert incident.culprit == echo(0)


def test_the_only_agent_of_a_world_tells_of_no_echo() -> None:
    """It has seen all there is to see: nothing is waited for before it is charged."""
    alone = dataclasses.replace(TWO, min_nodes=1, max_nodes=1)
    state = say(training(alone, nodes=1), report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.0)

    assert (state.echoes, [i.culprit for i in state.incidents]) == (None, [echo(0)])
