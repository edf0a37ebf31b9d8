"""Two supervisors and two coordinators that stall, crash and wake late, at every interleaving (tests/model).

Never do two attempts live at once, never have two whole worlds workers, never is anything released or forgotten that still
runs; nobody who lives on is given a place before it has left its world, no round is closed before that, and no fault of a
worker is charged twice; and whatever happened, once nothing goes wrong any more, the job ends and leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.agent.node import events
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.supervision.policy import Policy
from tests.model import workers
from tests.model.explorer import check, explore, follow, settle, walk
from tests.model.world import Limits, World, new_world
from tests.scale import sized

pytestmark = pytest.mark.timeout(1800)

#: States that one search goes through at the most, and random ways of each kind.
_STATES, _WAYS = sized(12_000, 800), sized(40, 4)

#: The same where workers live on: each move costs more there.
_LIVING_STATES, _LIVING_WAYS = sized(2_500, 300), sized(10, 2)


def job(
    nodes: tuple[int, int],
    *,
    fence_timeout: float = 60.0,
    size: int = 1,
    living: bool = False,
    restarts: int = 1,
    **limits: object,
) -> World:
    """A job whose graces are either nothing or longer than the story, and what may go wrong with it."""
    policy = Policy(
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        retry_limit=2,
        node_replacements=1,
        admission_grace=1e6,
        warmup_grace=1e6,
        failure_grace=0.0,
        retry_pause=0.0,
        forceful_deletion_grace=30.0,
        pending_fail_strategy=-1,
    )
    settings = Settings(
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        last_call=0.0,
        join_timeout=1e6,
        node_lease=15.0,
        max_restarts=restarts,
        fence_timeout=fence_timeout,
        stop_grace=0.0,
    )
    calm = {"crashes": 0, "kills": 0, "leases": 0, "moments": 0}
    left = Limits(**{**calm, **limits})  # type: ignore[arg-type]
    return new_world(policy, settings, left, fence_timeout=fence_timeout, size=size, living=living)


#: One supervisor, whose turn is one move, and a coordinator and two nodes that have started.
ROUNDS: dict[str, Any] = {"supervisors": 1, "split_supervisors": False}
STARTED = ("supervisor 0 turns", "supervisor 0 turns", "starts (1, -1", "starts (1, 0", "starts (1, 1")
ALONE = ("supervisor 0 turns", "supervisor 0 turns", "starts (1, -1", "starts (1, 0")

#: Where a search begins: what may go wrong from there, and how it came to it.
SEARCHES = [
    pytest.param(job((1, 1), crashes=1, split_coordinators=False), (), id="two supervisors from the beginning"),
    pytest.param(
        job((1, 1), crashes=1, deletions=1, split_coordinators=False),
        ("supervisor 0 loads", "supervisor 0 observes", "supervisor 0 saves"),
        id="one sleeps before it acts, and the job is deleted",
    ),
    pytest.param(
        job((1, 1), crashes=1, suspensions=1, split_coordinators=False),
        ("supervisor 0 loads", "supervisor 0 observes", "supervisor 0 saves"),
        id="one sleeps before it acts, and the job is suspended",
    ),
    pytest.param(
        job((1, 1), kills=2, moments=1, split_coordinators=False),
        ("supervisor 0 loads", "supervisor 0 observes", "supervisor 0 saves", "supervisor 1 loads"),
        id="one sleeps before it acts, and nodes are killed",
    ),
    pytest.param(
        job((1, 1), shims=2, moments=1, split_coordinators=False),
        ("supervisor 0 loads", "supervisor 0 observes", "supervisor 0 saves", *("supervisor 0 acts",) * 2, "starts"),
        id="nodes and coordinators are lost and run on",
    ),
    pytest.param(job((1, 2), **ROUNDS, cuts=1, leases=1, moments=1), STARTED, id="a node is cut off"),
    pytest.param(
        job((1, 2), **ROUNDS, cuts=1, losses=1, moments=1, split_coordinators=False), STARTED, id="answers are lost, too"
    ),
    pytest.param(job((1, 1), **ROUNDS, kills=1, cuts=1, leases=1), ALONE, id="a world of one is cut off"),
    pytest.param(job((1, 2), **ROUNDS, shims=1, moments=1, cuts=1), STARTED, id="two coordinators at once"),
    pytest.param(job((2, 3), **ROUNDS, kills=2, moments=1, worker_faults=1), STARTED, id="workers fail and nodes are killed"),
]

#: A world of workers that can live on: one of one node with two, one of two nodes, and those after its first round.
TALK = ("reports", "publishes", "answers", "hears", "hears")
LIVING: dict[str, Any] = {**ROUNDS, "living": True, "restarts": 5}
SEARCHES += [
    pytest.param(
        job((1, 1), **LIVING, size=2, worker_kills=2, overdue=1), (*ALONE, *TALK), id="a worker is dead, and one more meanwhile"
    ),
    pytest.param(
        job((1, 1), **LIVING, size=2, worker_kills=1, raises=1, overdue=1),
        (*ALONE, *TALK),
        id="a step raises, and a worker is dead",
    ),
    pytest.param(
        job((1, 2), **LIVING, worker_kills=1, raises=1), (*ALONE, *TALK[:4]), id="a node joins while the others regroup"
    ),
    pytest.param(
        job((1, 2), **LIVING, worker_kills=1, kills=1, overdue=1, echoes=1),
        STARTED,
        id="a survivor is late, and a node is killed",
    ),
    pytest.param(
        job((2, 2), **LIVING, worker_kills=1, cuts=1, echoes=1, moments=1, split_coordinators=False),
        STARTED,
        id="a node is cut off while it regroups",
    ),
    pytest.param(
        job((2, 2), **LIVING, raises=1, shims=1, moments=1, echoes=1), STARTED, id="two coordinators while workers live on"
    ),
]


@pytest.mark.parametrize(("world", "script"), SEARCHES)
def test_every_interleaving(world: World, script: tuple[str, ...]):
    """From there on everything that can happen happens, in every order, as deep as the number of states allows."""
    most = _LIVING_STATES if world.living else _STATES
    found = explore(follow(world, *script), depth=60, most=most)
    assert not found.broken, found.tell()
    assert found.states == most or found.depth >= 5


#: Everything goes wrong that can.
STORMS = [
    pytest.param(job((1, 1), crashes=2, kills=2, cuts=1, leases=3, moments=4, jumps=1, losses=1), id="one node"),
    pytest.param(job((1, 2), crashes=2, kills=2, cuts=2, leases=3, moments=4, jumps=1, suspensions=1), id="one or two"),
    pytest.param(job((2, 3), crashes=2, kills=3, cuts=2, shims=1, leases=3, moments=4, worker_faults=2), id="two or three"),
    pytest.param(job((1, 2), crashes=3, shims=2, cuts=1, losses=2, leases=4, moments=4, deletions=1), id="deleted"),
    pytest.param(job((2, 2), crashes=2, kills=4, leases=3, moments=4, jumps=2, worker_faults=3), id="resets"),
]

HARM: dict[str, Any] = {"worker_kills": 3, "raises": 2, "overdue": 2, "echoes": 3}
STORMS += [
    pytest.param(
        job((1, 1), size=2, living=True, restarts=2, **HARM, kills=1, crashes=1, leases=2, moments=3), id="living, one"
    ),
    pytest.param(job((1, 2), living=True, restarts=3, **HARM, kills=2, cuts=1, leases=2, moments=4), id="living, one or two"),
    pytest.param(
        job((2, 3), living=True, restarts=3, **HARM, kills=2, shims=1, leases=2, moments=4), id="living, two or three"
    ),
    pytest.param(
        job((2, 2), size=2, living=True, restarts=3, **HARM, kills=1, cuts=1, losses=2, suspensions=1, leases=2, moments=4),
        id="living, two of two",
    ),
]


@pytest.mark.parametrize("world", STORMS)
def test_a_long_way_through_a_storm(world: World):
    """On random ways of 150 moves nothing is ever twice; when the storm is over the job ends, and nothing is left."""
    for seed in range(_LIVING_WAYS if world.living else _WAYS):
        after, found = walk(world, seed=seed, steps=150)
        if not found.broken:
            found = settle(after, found.trace, seed=seed)
        assert not found.broken, f"seed {seed}\n{found.tell()}"


def test_the_search_finds_who_has_not_left():
    """A place in a new world for one that is in an old one, and a round that is closed before all have left, are found."""
    world = follow(job((1, 1), **LIVING, size=2), *ALONE, *TALK)
    [(key, agent)] = world.agents
    assert agent.node.assignment is not None
    kept = events.StartWorkers(assignment=agent.node.assignment, kept=frozenset({0}))
    late = workers.perform(world, key, (kept,))[0]
    found = check(late)
    assert ["has not left" in what for what in found] == [True, False]
    assert "is started" in found[1]
    assert check(workers.closed(world, {key}, 2)) == (f"round 2 is closed, and a worker of {key} has not left the one before",)


def test_the_search_finds_what_is_wrong():
    """A node that starts without asking the record is found to live beside the next attempt: the check is not blind."""
    world = job((1, 1), split_coordinators=False)
    script = ("supervisor 0 loads", "supervisor 0 observes", "supervisor 0 saves", *("supervisor 0 acts",) * 2, "starts (1, -1")
    world = follow(world, *script, "starts (1, 0")
    late = dataclasses.replace(world, procs=(*world.procs, ((2, 0, 1), world.procs[-1][1])))
    assert check(late) == ("attempts [1, 2] live at once",)
