"""A job whose pods another controller makes: its record follows the controller's conditions."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.supervision.actions import EndServers
from rallypoint.supervision.following import follow
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation, Told
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Condition, ConditionType, JobRecord, Phase
from rallypoint.wire.plan import Profile

POLICY = Policy(min_nodes=1, max_nodes=1, profile=Profile.APPWRAPPER, wrapped=True, node_replacements=0)


def told(phase: Phase, **at: float) -> Observation:
    """The controller's word: its true conditions, with their times."""
    conditions = tuple(
        Condition(type=ConditionType[name], value=True, reason="Said", at=time, clock=0.0) for name, time in at.items()
    )
    return Observation(told=Told(phase=phase, conditions=conditions))


def test_an_attempt_is_ready_when_the_controller_first_says_so() -> None:
    """Before any attempt was deployed nothing is noted; the first time of readiness stays."""
    record = JobRecord.new(name="wrapped", uid="u1", digest="d", owner="ann", now=0.0)
    seen = []
    for observation in (
        told(Phase.SUSPENDED, PODS_READY=3.0),
        told(Phase.RESUMING, RESOURCES_DEPLOYED=5.0),
        told(Phase.RUNNING, RESOURCES_DEPLOYED=5.0, PODS_READY=8.0),
        told(Phase.RUNNING, RESOURCES_DEPLOYED=5.0, PODS_READY=9.0),
    ):
        record = follow(record, observation, POLICY).record
        seen.append([attempt.ready_at for attempt in record.attempts])

    assert seen == [[], [None], [8.0], [8.0]]


def waiting(phase: Phase, **word: Any) -> Observation:
    """A pod whose servers the job does not need any more, and a pod that it still needs."""
    fields: dict[str, Any] = {"attempt": 1, "incarnation": 1, "state": NodeState.RUNNING, "present": True}
    nodes = (NodeSeen(node=2, unneeded=True, **fields), NodeSeen(node=3, **fields))
    return Observation(told=Told(phase=phase, **word), nodes=nodes)


def test_servers_that_nobody_needs_are_asked_to_end() -> None:
    """Again until they are seen to be asked; the record tells it once for each attempt."""
    record = JobRecord.new(name="wrapped", uid="u1", digest="d", owner="ann", now=0.0)
    record = follow(record, told(Phase.RUNNING, RESOURCES_DEPLOYED=5.0), POLICY).record
    steps = []
    for _ in range(2):
        steps.append(follow(record, waiting(Phase.RUNNING), POLICY))
        record = steps[-1].record

    assert [step.actions for step in steps] == [(EndServers(attempt=1, node=2),)] * 2
    assert [event.detail for event in record.history if event.kind == "servers-ended"] == [
        "attempt 1: all drivers have succeeded; the servers receive SIGTERM"
    ]


@pytest.mark.parametrize(
    ("phase", "word"),
    [
        (Phase.RESETTING, {}),
        (Phase.SUSPENDING, {}),
        (Phase.RESUMING, {}),
        (Phase.FAILED, {}),
        (Phase.RUNNING, {"deleting": True}),
        (Phase.RUNNING, {"suspended": True}),
    ],
)
def test_servers_of_an_attempt_that_ends_are_left_alone(phase: Phase, word: dict[str, bool]) -> None:
    """Their controller deletes their pods."""
    record = JobRecord.new(name="wrapped", uid="u1", digest="d", owner="ann", now=0.0)
    record = follow(record, told(Phase.RUNNING, RESOURCES_DEPLOYED=5.0), POLICY).record

    actions = follow(record, waiting(phase, **word), POLICY).actions
    assert not [action for action in actions if isinstance(action, EndServers)]


def test_of_many_resets_the_newest_are_kept() -> None:
    """One number in a status allocated 17 GB; the record stays one that is read again."""
    record = JobRecord.new(name="wrapped", uid="u1", digest="d", owner="ann", now=0.0)
    record = follow(record, Observation(told=Told(phase=Phase.RESETTING, retries=2**31 - 1)), POLICY).record

    assert (len(record.charges), record.retries) == (8192, 2**31 - 1)
