"""Rules for exits of a job and the instances of its simple roles: what must not be started again."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.job import load_job
from rallypoint.job.compile_roles import compile_roles
from rallypoint.supervision.conducting import final
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire.plan import Plan

KEY = UnitKey(role="judge", attempt=1, reset=0, index=0, incarnation=1)


def plan(**tolerance: object) -> Plan:
    roles = {"judge": {"launch": "simple", "entrypoint": "pkg.judge:run"}}
    return compile_roles(load_job({"name": "rl", "roles": roles, "fault_tolerance": tolerance}, based=False))


def failed(code: int | None, reason: str = "judge 0 ended") -> UnitSeen:
    return UnitSeen(key=KEY, state=UnitState.FAILED, present=False, reason=reason, exit_code=code)


@pytest.mark.parametrize(
    ("tolerance", "unit", "why"),
    [
        ({}, failed(3), ""),
        ({"terminal_exit_codes": [3]}, failed(3), "exit code 3 is terminal"),
        ({"terminal_exit_codes": [3]}, failed(4), ""),
        ({"terminal_exit_codes": [137]}, failed(-9), "exit code 137 is terminal"),
        ({"retryable_exit_codes": [4]}, failed(3), "exit code 3 is not retryable"),
        ({"retryable_exit_codes": [4]}, failed(4), ""),
        ({"terminal_exit_codes": [3]}, failed(None), ""),
        ({"terminal_exit_codes": [3]}, dataclasses.replace(failed(3), state=UnitState.LOST), ""),
        (
            {"rules": [{"signals": [9], "answer": "fail-now"}]},
            failed(-9),
            "rule 1 of fault_tolerance.rules (signal 9)",
        ),
        ({"rules": [{"exit_codes": [3], "answer": "retry-here"}], "terminal_exit_codes": [3]}, failed(3), ""),
        (
            {"rules": [{"log_pattern": "bad seed", "answer": "fail-now"}]},
            failed(1, "judge 0 exited with code 1: ValueError: bad seed"),
            "rule 1 of fault_tolerance.rules (log pattern 'bad seed')",
        ),
    ],
)
def test_only_what_the_job_says_ends_it(tolerance, unit, why):
    """Without rules every failure is answered by starting something again."""
    assert final(unit, plan(**tolerance)) == why
