"""The exit code of the driver of a Ray cluster, by the record of its job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.supervision.role_records import ConductorRecord, Level, Step
from rallypoint.wire.incident import Culprit
from rallypoint.wire.status import Outcome, Verdict

pytest.importorskip("ray")

from rallypoint.backends.ray.cluster.driver import exit_code


def record(phase: Phase, **fields: Any) -> JobRecord:
    return dataclasses.replace(JobRecord.new(name="j", uid="u", digest="d", owner="o", now=0.0), phase=phase, **fields)


def culprit(**fields: Any) -> dict[str, Any]:
    return {"verdict": Verdict(outcome=Outcome.FAILED, reason="r", message="m", culprit=Culprit(rank=1, **fields))}


def steps(*every: tuple[Level, int | None]) -> dict[str, Any]:
    history = tuple(
        Step(level=level, role="a", index=0, attempt=1, reason="r", at=0.0, exit_code=code) for level, code in every
    )
    failed = Verdict(outcome=Outcome.FAILED, reason="RoleFailed", message="m")
    return {"verdict": failed, "conductor": ConductorRecord(attempt=1, first=1, roles=(), history=history)}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        pytest.param(None, 1, id="deleted by another"),
        pytest.param(record(Phase.SUCCEEDED), 0, id="success"),
        pytest.param(record(Phase.FAILED), 1, id="no verdict"),
        pytest.param(record(Phase.FAILED, **culprit(exit_code=7)), 7, id="rank"),
        pytest.param(record(Phase.FAILED, **culprit(signal=9)), 137, id="killed rank"),
        pytest.param(record(Phase.FAILED, **culprit(exit_code=0)), 1, id="no failure of its own"),
        pytest.param(record(Phase.FAILED, **steps((Level.INSTANCE, 3), (Level.NONE, 9))), 9, id="instance"),
        pytest.param(record(Phase.FAILED, **steps((Level.NONE, -9))), 137, id="killed instance"),
        pytest.param(record(Phase.FAILED, **steps((Level.NONE, None))), 1, id="elastic role"),
        pytest.param(record(Phase.FAILED, **steps((Level.INSTANCE, 3))), 1, id="another cause than the last restart"),
        pytest.param(record(Phase.FAILED, **steps()), 1, id="no step"),
    ],
)
def test_the_driver_ends_as_its_job(found, code):
    """The policy outside judges by this code; a restart that helped has no part in it."""
    assert exit_code(found) == code
