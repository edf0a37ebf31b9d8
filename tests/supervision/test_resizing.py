"""A job that grows and shrinks: what is made, what is ended, and what is left alone."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision import resizing
from rallypoint.supervision.actions import CreateNode, RemoveNode
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Entry, Kind, Plan, Profile
from rallypoint.wire.sections import build
from tests.supervision.worlds import World

POLICY = Policy(min_nodes=1, max_nodes=2, forceful_deletion_grace=30.0)


def running() -> World:
    world = World(policy=POLICY)
    world.settle(1.0)
    assert world.record.phase is Phase.RUNNING
    return world


def resize(world: World, least: int, most: int) -> None:
    world.record = dataclasses.replace(world.record, size=Size(min_nodes=least, max_nodes=most))


def there(world: World) -> list[tuple[int, int]]:
    return sorted((node, incarnation) for (_, node, incarnation), seen in world.seen.items() if node >= 0 and seen.present)


def test_a_job_grows_by_the_nodes_that_are_missing() -> None:
    """Those that are there are not touched, no budget pays, and the history tells it."""
    world = running()
    resize(world, 1, 4)

    decision = world.turn(2.0)

    assert decision.actions == tuple(CreateNode(attempt=1, node=node, incarnation=1) for node in (2, 3))
    world.settle(3.0)
    assert there(world) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert (world.record.retries, world.record.incidents, world.record.phase) == (0, (), Phase.RUNNING)
    assert [e.detail for e in world.record.history if e.kind == "resized"] == ["4 nodes requested (at least 1); before: 2"]


def test_a_job_shrinks_by_its_last_nodes_which_end_in_peace() -> None:
    """They are asked to end, and forced only after the forceful grace; their end is no fault of anybody."""
    world = running()
    resize(world, 1, 1)
    world.deaf = True

    assert world.turn(2.0).actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=False),)
    assert world.turn(3.0).actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=False),)
    assert world.turn(33.0).actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=True),)
    world.deaf = False
    world.settle(34.0)
    assert there(world) == [(0, 1)]
    assert (world.record.incidents, world.record.phase) == ((), Phase.RUNNING)


def test_what_comes_back_into_a_slot_is_its_next_incarnation_and_waits_for_the_last() -> None:
    """Two nodes of one slot never run at once."""
    world = running()
    resize(world, 1, 1)
    world.deaf = True
    world.turn(2.0)
    resize(world, 1, 2)

    assert world.turn(3.0).actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=False),)
    world.deaf = False
    world.settle(4.0)
    assert there(world) == [(0, 1), (1, 2)]
    assert world.record.retired == ()


def test_the_next_attempt_has_the_size_that_is_wanted_and_the_next_submission_its_own() -> None:
    """A reset keeps the wish; a new owner's submission says what it wants."""
    world = running()
    resize(world, 1, 3)
    reset = dataclasses.replace(world.record, phase=Phase.EMPTY)
    again = dataclasses.replace(world, record=reset, seen={})

    again.settle(5.0)

    assert [slot.node for slot in again.record.slots] == [0, 1, 2]
    assert again.record.restarted(owner="other", now=6.0).size is None


def plan(**more: object) -> Plan:
    fields = {"name": "a", "role": "trainer", "min_nodes": 2, "max_nodes": 4, "entry": Entry.SCRIPT, "entrypoint": "t.py"}
    return build(Plan, **{**fields, **more})


@pytest.mark.parametrize(
    ("changes", "size", "says"),
    [
        pytest.param({}, Size(min_nodes=1, max_nodes=9), "", id="ladder"),
        pytest.param(
            {"kind": Kind.PYTORCHJOB}, Size(min_nodes=1, max_nodes=2), "kind: 'pytorchjob' cannot be resized", id="kind"
        ),
        pytest.param(
            {"profile": Profile.APPWRAPPER},
            Size(min_nodes=2, max_nodes=2),
            "profile: 'appwrapper' cannot be resized",
            id="profile",
        ),
        pytest.param(
            {},
            Size(min_nodes=0, max_nodes=2),
            "nodes: '0:2' is not allowed; expected N or MIN:MAX with 1",
            id="none",
        ),
        pytest.param({}, Size(min_nodes=3, max_nodes=2), "nodes: '3:2' is not allowed", id="upside down"),
        pytest.param({"node_unit": 4}, Size(min_nodes=2, max_nodes=3), "includes a multiple of node_unit (4)", id="unit"),
    ],
)
def test_who_cannot_have_a_size_is_told_why(changes: dict[str, object], size: Size, says: str) -> None:
    """The field, the value and what is allowed."""
    told = resizing.refusal(plan(**changes), size)

    assert says in told
    assert bool(says) is bool(told)
