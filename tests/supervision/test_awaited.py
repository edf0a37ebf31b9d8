"""What a job waits for that others decide, with names and numbers."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision.following import LIMIT, waits_for
from rallypoint.supervision.observation import CreateError, NodeSeen, NodeState, Observation
from rallypoint.supervision.record import JobRecord, Phase

RECORD = dataclasses.replace(
    JobRecord.new(name="digits", uid="u1", digest="d", owner="ann", now=0.0), phase=Phase.RESUMING, attempt=1
)
SAID = 'node 1: pods "digits-1" is forbidden: exceeded quota: tight, requested: pods=1, used: pods=2, limited: pods=2'
FULL = CreateError(attempt=1, node=1, reason=SAID, fatal=False, waits=True)
NO_ROOM = NodeSeen(
    attempt=1,
    node=1,
    incarnation=1,
    state=NodeState.STARTING,
    present=True,
    unschedulable=True,
    reason="0/3 nodes are available: 3 Insufficient cpu.",
)
PULLS = dataclasses.replace(NO_ROOM, unschedulable=False, reason="ContainerCreating")
RUNS = NodeSeen(attempt=1, node=0, incarnation=1, state=NodeState.RUNNING, present=True)
CREATED = "PyTorchJob Created (PyTorchJobCreated): it is created"


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        pytest.param(Observation(), "", id="nothing"),
        pytest.param(
            Observation(create_errors=(FULL,)), "quota tight: node 1 asks for pods=1; used pods=2, limit pods=2", id="a quota"
        ),
        pytest.param(
            Observation(create_errors=(dataclasses.replace(FULL, node=-1), FULL)),
            "quota tight: the coordinator asks for pods=1; used pods=2, limit pods=2",
            id="a quota, for several",
        ),
        pytest.param(
            Observation(create_errors=(dataclasses.replace(FULL, reason="node 1: too many requests", waits=False),)),
            "node 1: too many requests",
            id="the API server",
        ),
        pytest.param(Observation(create_errors=(dataclasses.replace(FULL, attempt=7),)), "", id="of another attempt"),
        pytest.param(
            Observation(nodes=(RUNS, NO_ROOM)), "node 1: 0/3 nodes are available: 3 Insufficient cpu.", id="room on a machine"
        ),
        pytest.param(
            Observation(nodes=(NO_ROOM, dataclasses.replace(NO_ROOM, node=2))),
            "node 1 (and 1 more): 0/3 nodes are available: 3 Insufficient cpu.",
            id="room for two",
        ),
        pytest.param(Observation(nodes=(RUNS, PULLS)), "", id="an image that is pulled"),
        pytest.param(Observation(controller=CREATED), CREATED, id="another controller"),
        pytest.param(Observation(controller=CREATED, nodes=(RUNS,)), "", id="another controller that has done its part"),
    ],
)
def test_what_is_awaited_is_named(seen: Observation, text: str) -> None:
    """By whose decision, and with the numbers that are known."""
    assert waits_for(RECORD, seen) == text


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING, Phase.RESETTING])
def test_a_job_that_does_not_start_waits_for_nobody(phase: Phase) -> None:
    """What was refused before it ended is of no interest any more."""
    assert waits_for(dataclasses.replace(RECORD, phase=phase), Observation(create_errors=(FULL,))) == ""


def test_a_long_text_is_cut() -> None:
    """A record stays small."""
    long = dataclasses.replace(FULL, reason="x" * 10_000)
    assert len(waits_for(RECORD, Observation(create_errors=(long,)))) <= LIMIT
