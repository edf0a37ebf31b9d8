"""A coordinator whose status no other can read is not followed by a second one that could close another round beside it."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import Phase
from tests.supervision.test_reconcile import FIXED
from tests.supervision.worlds import World, phase, running


def job(nodes: tuple[int, int], *, durable: bool) -> World:
    world = running(dataclasses.replace(FIXED, min_nodes=nodes[0], max_nodes=nodes[1]))
    world.tells(nodes=nodes[1])
    assert world.status is not None
    world.status = dataclasses.replace(world.status, durable=durable)
    return world


def lose(world: World, state: NodeState) -> None:
    world.ends((1, -1, 1), state=state, exit_code=None if state is NodeState.LOST else 137)
    world.turn(50.0)


@pytest.mark.parametrize(
    ("nodes", "durable", "state", "expected"),
    [
        pytest.param((2, 4), False, NodeState.LOST, Phase.RESETTING, id="two halves, and nobody saw it end"),
        pytest.param((2, 4), False, NodeState.FAILED, Phase.RUNNING, id="it is known to be dead"),
        pytest.param((2, 4), True, NodeState.LOST, Phase.RUNNING, id="the next one knows what it did"),
        pytest.param((3, 4), False, NodeState.LOST, Phase.RUNNING, id="no two worlds have room"),
        pytest.param((3, 5), False, NodeState.LOST, Phase.RUNNING, id="an odd number of nodes"),
        pytest.param((1, 1), False, NodeState.LOST, Phase.RUNNING, id="one node"),
    ],
)
def test_when_a_second_coordinator_must_not_start(
    nodes: tuple[int, int], durable: bool, state: NodeState, expected: Phase
) -> None:
    """Only where all three meet is the job reset; otherwise the next term takes over for free."""
    world = job(nodes, durable=durable)
    lose(world, state)

    assert phase(world) is expected
    assert world.record.term == 2
    created = any((key[0], key[1]) == (1, -1) and key[2] == 2 for key in world.seen)
    assert created is (expected is Phase.RUNNING)


def test_the_reset_says_why_and_what_would_help() -> None:
    """The permission, or bounds that leave no room for two worlds."""
    world = job((1, 2), durable=False)
    lose(world, NodeState.LOST)

    told = world.record.attempts[0]
    assert told.reason == "CoordinatorFailed"
    assert "the coordinator was lost; it may still run, and no other coordinator can read its status" in told.message
    assert "allow the coordinator to write its status, or set MIN to more than half of MAX" in told.message
