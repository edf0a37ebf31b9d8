"""Nodes that are lost by evidence while their objects are there, and those that must be created anew to find a machine."""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.actions import CreateNode, RemoveNode
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.wire.incident import Cause, FaultKind
from rallypoint.wire.status import JobState
from tests.supervision.worlds import World, running

HEALING = Policy(min_nodes=2, max_nodes=2)


def lost(world: World, slot: int = 1) -> None:
    """Let a node be lost with its machine, which says nothing."""
    key = world.node(slot)
    changes = {"state": NodeState.LOST, "unseen": True, "kind": FaultKind.NODE_LOST, "reason": "machine b is silent"}
    world.seen[key] = dataclasses.replace(world.seen[key], **changes)  # type: ignore[arg-type]


def test_a_lost_node_is_removed_and_its_successor_knows_that_nobody_saw_its_end() -> None:
    """The object goes first, by force; then the next incarnation is created, and tells it to the coordinator."""
    world = running(HEALING)
    lost(world)

    assert world.turn(20.0).actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=True),)
    assert world.turn(20.1).actions == (CreateNode(attempt=1, node=1, incarnation=2, unseen=1),)
    assert (world.record.attempt, world.record.retries) == (1, 0)


def test_what_was_not_seen_is_not_forgotten_with_the_next_incarnation() -> None:
    """The end of the second is seen; the first may still run."""
    world = running(HEALING)
    lost(world)
    world.settle(20.0)

    world.ends(world.node(1))
    world.settle(30.0)

    (slot,) = (slot for slot in world.record.slots if slot.node == 1)
    assert (slot.incarnation, slot.unseen) == (3, 1)


def test_a_node_that_ended_before_everybody_was_seen_to() -> None:
    """Its successor proves that."""
    world = running(HEALING)
    world.ends(world.node(1))
    world.settle(20.0)

    (slot,) = (slot for slot in world.record.slots if slot.node == 1)
    assert (slot.incarnation, slot.unseen) == (2, 0)


def test_the_fence_is_told_while_a_world_waits_for_it() -> None:
    """Both members were lost with their machines: when the next world may begin is a clock that `explain` shows."""
    world = running(HEALING)
    for slot in (0, 1):
        lost(world, slot)
    world.tells(JobState.FORMING)
    world.settle(20.0)

    decision = world.turn(30.0)

    assert [(one.clock, one.at - world.record.clock) for one in decision.deadlines if one.clock == "fence-timeout"] == [
        ("fence-timeout", HEALING.fence - 10.0)
    ]
    world.tells(JobState.RUNNING)
    assert all(one.clock != "fence-timeout" for one in world.turn(31.0).deadlines)


def test_an_outdated_pod_is_created_anew_for_nothing() -> None:
    """It keeps off a machine that has come back, and no other has room: another pod may go there."""
    world = running(HEALING)
    lost(world)
    world.settle(20.0)
    key = world.node(1)
    world.seen[key] = dataclasses.replace(world.seen[key], state=NodeState.STARTING, host="", outdated="is created anew")

    world.settle(30.0)

    (slot,) = (slot for slot in world.record.slots if slot.node == 1)
    assert (slot.incarnation, slot.unseen) == (3, 1)
    (incident,) = (i for i in world.record.incidents if i.id.sequence == 2)
    assert (incident.cause, incident.culprit) == (Cause.EVACUATION, None)
    assert world.record.retries == 0
