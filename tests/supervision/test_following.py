"""A job whose pods another controller makes: its record follows the controller's conditions."""

from __future__ import annotations

from rallypoint.supervision.following import follow
from rallypoint.supervision.observation import Observation, Told
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
