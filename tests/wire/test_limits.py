"""Numbers in the files of a job are limited where they decide how much is allocated: a script can write any number there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rallypoint.report.hang import picture
from rallypoint.wire import codec
from rallypoint.wire.hang import GroupSeen
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.node_range import MAX_NODES, MAX_WORKERS, Size
from rallypoint.wire.places import RankSpan
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import Member
from tests.wire.test_codec import REPORT

MEMBER = {"node": 0, "incarnation": 1, "agent": "a", "host": "h", "local_world_size": 8, "first_rank": 0}
PLAN = {"name": "x", "role": "worker", "min_nodes": 1, "max_nodes": 2, "entry": "script", "entrypoint": "x.py", "args": []}
GROUP = {"name": "g", "first": 0, "step": 1, "size": 8, "called": 1}


@pytest.mark.parametrize(
    ("kind", "value", "field", "number", "least", "most"),
    [
        (Member, MEMBER, "local_world_size", 10**9, 0, MAX_WORKERS),
        (Member, MEMBER, "local_world_size", -(10**9), 0, MAX_WORKERS),
        (Member, MEMBER, "first_rank", 1 << 40, -1, MAX_NODES * MAX_WORKERS),
        (AgentReport, codec.to_json(REPORT), "local_world_size", 10**6, 0, MAX_WORKERS),
        (Size, {"min_nodes": 1, "max_nodes": 4}, "max_nodes", 10**9, 0, MAX_NODES),
        (Plan, PLAN, "max_nodes", 10**9, 0, MAX_NODES),
        (Plan, PLAN, "min_nodes", -1, 0, MAX_NODES),
        (GroupSeen, GROUP, "step", 0, 1, 1 << 30),
        (GroupSeen, GROUP, "size", 1 << 40, 0, 1 << 17),
    ],
)
def test_a_number_outside_its_limits_is_refused(
    kind: type, value: dict[str, Any], field: str, number: int, least: int, most: int
) -> None:
    """The error names the field, the number and the limits; both limits themselves are read."""
    for allowed in (least, most):
        assert getattr(codec.from_json(kind, value | {field: allowed}), field) == allowed

    with pytest.raises(codec.WireError) as refused:
        codec.loads(kind, json.dumps(value | {field: number}))
    assert str(refused.value) == f"{field}: {number} is not allowed; expected a number from {least} to {most}"


@pytest.mark.parametrize("at", ["NaN", "Infinity", 1e300])
def test_a_time_that_cannot_be_rounded_is_refused(at: object) -> None:
    """One of 600 incidents in a status ended each supervisor of the job."""
    incident = codec.to_json(
        Incident(id=IncidentId(attempt=1, round=1), cause=Cause.PROCESS, rung=Rung.RESTART_WORKERS, reason="")
    )

    with pytest.raises(codec.WireError, match=r"detected_at: .* is not allowed; expected a number from -1099511627776 to"):
        codec.from_json(Incident, {**incident, "detected_at": at})


@pytest.mark.parametrize(("kind", "value"), [(AgentReport, codec.to_json(REPORT)), (Member, MEMBER)])
def test_an_incarnation_may_be_a_time(kind: type, value: dict[str, Any]) -> None:
    """The incarnation of an agent with `--node-rank` is the time of its start in seconds."""
    assert codec.from_json(kind, value | {"incarnation": 1 << 40}).incarnation == 1 << 40


def test_the_picture_of_a_hang_has_few_steps_on_its_axis() -> None:
    """However far apart the reported steps are."""
    places = tuple(RankSpan(first=n, last=n, count=1, least=far, most=far) for n, far in enumerate((0, 2**63)))
    hang = Incident(id=IncidentId(attempt=1, round=1), cause=Cause.HANG, rung=Rung.NOTIFY, reason="", places=places)

    assert picture(hang, "a hang").count("<line") <= 12
