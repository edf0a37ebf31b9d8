"""Nodes that are replaced together: those on machines with the same value of a label (`node_group_failover`)."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.incident import FREE, Cause
from tests.supervision.worlds import World, running

POLICY = Policy(min_nodes=1, max_nodes=3, node_group="rack", node_group_timeout=30.0)


def on_racks(world: World, *racks: str) -> None:
    """Let the nodes of all slots run on machines of these racks."""
    for slot, rack in enumerate(racks):
        key = world.node(slot)
        world.seen[key] = dataclasses.replace(world.seen[key], state=NodeState.RUNNING, group=rack)


def pends(world: World, slot: int) -> None:
    """Let the node of a slot wait for room."""
    key = world.node(slot)
    world.seen[key] = dataclasses.replace(world.seen[key], state=NodeState.STARTING, group="")


def waiting(*racks: str, policy: Policy = POLICY) -> World:
    """Return a job that lost its node 0 at second 20; the replacement is pending since then."""
    world = running(policy)
    on_racks(world, *racks)
    world.settle(15.0)
    world.ends(world.node(0))
    world.settle(20.0)
    pends(world, 0)
    world.settle(20.0)
    return world


def incarnations(world: World) -> list[int]:
    return [slot.incarnation for slot in world.record.slots]


def test_all_nodes_of_a_group_are_replaced_when_a_replacement_is_pending_for_too_long() -> None:
    """Also the pending one, which may now run elsewhere; nodes of other groups stay, and no budget is charged."""
    world = waiting("a", "a", "b")

    before = world.settle(49.0)
    assert incarnations(world) == [2, 1, 1]
    assert [(deadline.clock, deadline.at) for deadline in before.deadlines if deadline.clock == "node-group"] == [
        ("node-group", 50.0)
    ]
    world.settle(50.0)

    assert incarnations(world) == [3, 2, 1]
    assert world.record.left_groups == ("a",)
    left = [incident for incident in world.record.incidents if incident.cause is Cause.EVACUATION]
    assert [incident.reason for incident in left] == [
        "node 0 leaves the machines with rack=a, because the replacement of node 0 was pending for 30 s",
        "node 1 leaves the machines with rack=a, because the replacement of node 0 was pending for 30 s",
    ]
    assert Cause.EVACUATION in FREE
    assert world.record.phase is Phase.RUNNING


def test_a_group_is_left_once() -> None:
    """A node that finds no room elsewhere either waits, as any other; the next attempt may use all machines."""
    world = waiting("a", "a", "b")
    world.settle(50.0)
    on_racks(world, "c", "c", "b")
    pends(world, 0)
    for now in range(60, 200, 20):
        world.settle(float(now))
    assert incarnations(world) == [3, 2, 1]

    world.record = dataclasses.replace(world.record, renew=True)
    for now in range(200, 500, 20):
        world.settle(float(now))
    assert (world.record.attempt, world.record.left_groups) == (2, ())


def test_another_group_is_left_after_the_first() -> None:
    """The nodes that moved belong to the group to which they moved."""
    world = waiting("a", "a", "b")
    world.settle(50.0)
    on_racks(world, "b", "b", "b")
    world.settle(60.0)
    world.ends(world.node(2))
    world.settle(61.0)
    pends(world, 2)
    world.settle(61.0)
    world.settle(91.0)

    assert world.record.left_groups == ("a", "b")
    assert incarnations(world) == [4, 3, 3]


@pytest.mark.parametrize(
    ("policy", "racks"),
    [
        pytest.param(dataclasses.replace(POLICY, node_group=""), ("a", "a", "b"), id="not asked for"),
        pytest.param(POLICY, ("", "", ""), id="machines without the label, or that may not be read"),
    ],
)
def test_without_a_group_nothing_else_is_replaced(policy: Policy, racks: tuple[str, ...]) -> None:
    """The replacement waits until it has room."""
    world = waiting(*racks, policy=policy)
    for now in range(50, 200, 20):
        world.settle(float(now))

    assert incarnations(world) == [2, 1, 1]


def test_the_first_nodes_of_an_attempt_start_no_clock() -> None:
    """They are no replacements: what keeps them waiting is the admission's."""
    world = running(POLICY)
    on_racks(world, "a", "a", "b")
    world.settle(15.0)
    pends(world, 1)
    world.settle(20.0)
    world.settle(80.0)

    assert incarnations(world) == [1, 1, 1]


def test_the_record_keeps_the_groups() -> None:
    """So another supervisor leaves none twice."""
    world = waiting("a", "a", "b")
    world.settle(50.0)

    again = JobRecord.from_json(world.record.to_json())
    assert (again.left_groups, [slot.group for slot in again.slots]) == (("a",), ["a", "a", "b"])
