"""The arguments of the node check, as DLRover's reference has them and ours beside them."""

from __future__ import annotations

import pytest

from rallypoint.capabilities.node_check.wire import PlanSection
from rallypoint.job.compile import compile_plan
from rallypoint.job.errors import JobError
from rallypoint.job.model import load_job
from rallypoint.wire.plan import Plan


def plan(**health: object) -> Plan:
    return compile_plan(load_job({"name": "digits", "entrypoint": "train.py", "health": health}))[0]


@pytest.mark.parametrize(
    ("health", "level"),
    [
        pytest.param({}, 0, id="the default is no check"),
        pytest.param({"precheck": 1}, 1, id="in pairs"),
        pytest.param({"precheck": "2"}, 2, id="and all together, as a template rendered it"),
        pytest.param({"network_check": True}, 1, id="the older spelling of 1"),
        pytest.param({"comm_perf_test": True}, 2, id="and of 2"),
        pytest.param({"precheck": 1, "comm_perf_test": True}, 2, id="the higher one holds"),
    ],
)
def test_the_level_of_the_check(health: dict[str, object], level: int) -> None:
    """What is written decides the level, and the level what is tried."""
    assert PlanSection.of(plan(**health)).check_level == level


def test_everything_reaches_the_plan() -> None:
    """As seconds, flags and words."""
    told = plan(
        precheck=2,
        exclude_straggler=True,
        precheck_timeout="90s",
        precheck_all_pairs=True,
        precheck_only=True,
        precheck_program=["probe.sh", 3],
    )
    checked = PlanSection.of(told)
    assert (checked.exclude_straggler, checked.check_timeout, checked.check_all_pairs, checked.check_only) == (
        True,
        90.0,
        True,
        True,
    )
    assert checked.check_program == ("probe.sh", "3")


@pytest.mark.parametrize(
    ("health", "said"),
    [
        pytest.param(
            {"precheck": 3},
            "health.precheck: 3 is not allowed; expected one of 0, 1, 2",
            id="a level that is none",
        ),
        pytest.param({"precheck": True}, "one of 0, 1, 2", id="a flag is no level"),
        pytest.param(
            {"exclude_straggler": True},
            "health.exclude_straggler: .*no value, because the job has no node check",
            id="no check to be slow in",
        ),
        pytest.param(
            {"precheck_only": True},
            "health.precheck_only: .*no value, because the job has no node check; to enable one, set precheck to 1 or 2, "
            "or set network_check or comm_perf_test to true",
            id="a check without a check",
        ),
        pytest.param({"precheck": 1, "precheck_timeout": 0}, "more than 0s", id="no time"),
    ],
)
def test_everything_else_is_an_error_that_says_what_is_allowed(health: dict[str, object], said: str) -> None:
    """The field, the value, and what would be right."""
    with pytest.raises(JobError, match=said):
        plan(**health)


def test_a_job_without_a_check_has_the_digest_that_it_had() -> None:
    """One that runs is adopted after an upgrade; one that asks for a check is another."""
    assert plan().digest == plan(precheck=0, network_check=False).digest
    assert plan().digest != plan(precheck=1).digest
