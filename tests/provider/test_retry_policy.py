"""What a task's retries are spent on."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta

import pytest
from airflow.sdk import RetryAction

from rallypoint.job import load_job
from rallypoint.operators import TrainingRetryPolicy
from rallypoint.provider.claim import Failure
from rallypoint.provider.errors import OptionError, SupervisionFailed, TrainingFailed
from rallypoint.provider.failure import advised, failure_of
from rallypoint.supervision.record import Advice, Phase
from rallypoint.wire.incident import Answer, Cause, FaultKind
from tests.provider.records import CULPRIT, failed, incident, record, succeeded

POLICY = TrainingRetryPolicy(delay=60, memory_factor=2, memory_limit="48Gi")


@pytest.mark.parametrize(
    ("failure", "action", "delay"),
    [
        pytest.param(Failure(reason="FailNow"), RetryAction.FAIL, None, id="no retry can help"),
        pytest.param(Failure(reason="NoProgress", kind="oom"), RetryAction.FAIL, None, id="no progress"),
        pytest.param(Failure(reason="WorkersFailed", kind="application-error"), RetryAction.RETRY, None, id="a bug, perhaps"),
        pytest.param(Failure(reason="WorkersFailed", kind="oom"), RetryAction.RETRY, None, id="memory"),
        pytest.param(Failure(reason="FoundFailedPods", kind="hardware", hosts=("a",)), RetryAction.RETRY, None, id="a host"),
        pytest.param(Failure(reason="RendezvousTimeout"), RetryAction.RETRY, timedelta(seconds=60), id="too few came"),
        pytest.param(Failure(reason="FailedComponent", kind="evicted"), RetryAction.RETRY, timedelta(seconds=60), id="evicted"),
        pytest.param(Failure(reason="OfTheFuture"), RetryAction.RETRY, None, id="unknown"),
    ],
)
def test_a_verdict_decides_whether_and_when(failure, action, delay):
    """Each decision says why, for the task's log and its page."""
    decision = POLICY.evaluate(TrainingFailed("the story", failure), 1, 3)

    assert (decision.action, decision.retry_delay) == (action, delay)
    assert failure.reason in (decision.reason or "")


def test_what_is_not_the_jobs_fault_is_airflows_to_decide():
    """A supervision that broke, or a failure without a verdict."""
    for error in (SupervisionFailed("the trigger broke"), TrainingFailed("of an older version"), ValueError("x")):
        assert POLICY.evaluate(error, 1, 3).action is RetryAction.DEFAULT


def test_the_users_rules_win_by_reason_and_by_kind():
    """A kind that is named wins over our own rule for the reason."""
    policy = TrainingRetryPolicy(rules={"application-error": "fail", "FailNow": "retry-later"})

    assert policy.action_on(Failure(reason="WorkersFailed", kind="application-error")) == "fail"
    assert policy.action_on(Failure(reason="FailNow", kind="signal")) == "retry-later"
    assert policy.action_on(Failure(reason="WorkersFailed", kind="oom")) == "fail", "the same memory would be too small again"


def test_advice_adds_up_from_one_try_to_the_next():
    """Memory grows by the factor and hosts are left out once; other failures leave it as it was."""
    once = POLICY.advise(Failure(reason="WorkersFailed", kind="oom"), Advice())
    twice = POLICY.advise(Failure(reason="FoundFailedPods", kind="hardware", hosts=("a", "b")), once)
    again = POLICY.advise(Failure(reason="FoundFailedPods", kind="hardware", hosts=("b",)), twice)

    assert once == Advice(memory_factor=2.0, memory_limit="48Gi")
    assert again == twice == dataclasses.replace(once, ignore_hosts=("a", "b"))
    assert POLICY.advise(Failure(reason="RendezvousTimeout"), again) == again


@pytest.mark.parametrize(
    ("memory", "factor", "grown"),
    [
        pytest.param("16Gi", 2.0, "32Gi", id="doubled"),
        pytest.param("10Gi", 1.5, "15Gi", id="one and a half"),
        pytest.param("32Gi", 2.0, "48Gi", id="up to the limit"),
        pytest.param("64Gi", 2.0, "64Gi", id="never less than it was"),
        pytest.param("", 2.0, "", id="a job that names none"),
    ],
)
def test_a_job_grows_as_it_was_advised(memory, factor, grown):
    """And goes to none of the hosts, its own list included."""
    resources = {"memory": memory} if memory else {}
    job = load_job(name="a", entrypoint=["t"], resources=resources, host_ignore_list=["z"])

    (role,) = advised(job, Advice(memory_factor=factor, memory_limit="48Gi", ignore_hosts=("a", "z"))).roles

    assert (role.resources.memory, role.host_ignore_list) == (grown, ("z", "a"))
    assert advised(job, Advice()) is job


def test_a_failure_is_the_last_fault_of_the_last_attempt():
    """Beside it what happened on purpose counts for nothing; hosts are those that were to blame."""
    oom = dataclasses.replace(incident(2), kind=FaultKind.OOM, detected_at=200.0)
    host = dataclasses.replace(incident(1), answer=Answer.RETRY_ELSEWHERE, kind=FaultKind.HARDWARE)
    scaled = dataclasses.replace(incident(3, cause=Cause.SCALE), detected_at=300.0)
    job = dataclasses.replace(failed(), incidents=(host, oom, scaled))

    assert failure_of(job) == Failure(
        reason="WorkersFailed", kind="oom", message=str(job.verdict and job.verdict.message), hosts=(CULPRIT.host,)
    )
    assert failure_of(record(Phase.RUNNING)) is None
    assert failure_of(succeeded()) is None


def test_it_survives_the_serialization_of_its_dag():
    """As JSON; a scheduler need not have our code to read it."""
    told = json.loads(json.dumps(POLICY.serialize()))

    assert TrainingRetryPolicy.deserialize(told).serialize() == POLICY.serialize()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param({"delay": 0}, "delay: 0 is not allowed", id="no delay"),
        pytest.param(
            {"delay": float("inf")}, "delay: inf is not allowed; expected at most 1,000,000,000 seconds", id="endless"
        ),
        pytest.param(
            {"memory_factor": 1},
            "memory_factor: 1 is not allowed; expected a number above 1",
            id="no growth",
        ),
        pytest.param(
            {"memory_limit": "a lot"},
            "memory_limit: 'a lot' is not allowed; expected a quantity",
            id="no quantity",
        ),
        pytest.param(
            {"rules": {"oom": "pray"}},
            "rules\\['oom'\\]: 'pray' is not allowed; expected one of",
            id="rule",
        ),
    ],
)
def test_a_wrong_policy_is_an_error_when_the_dag_is_parsed(words, says):
    """The field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        TrainingRetryPolicy(**words)
