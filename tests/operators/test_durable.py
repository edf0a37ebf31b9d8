"""What a next try does with the job of the last: a retry, a clear, and a policy that changes what is submitted."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from airflow.sdk import RetryAction

from rallypoint.backends.contract import JobExistsError
from rallypoint.backends.requests import submit_or_adopt
from rallypoint.operators import TrainingRetryPolicy
from rallypoint.provider.errors import TrainingFailed
from rallypoint.provider.submission import CLEARED_TRIES
from rallypoint.supervision.record import Advice, Phase
from tests.operators.tasks import FAILURE, operator, run_without_collecting
from tests.operators.test_kills import _in_thread
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context
from tests.waiting import PATIENCE, eventually


def left_running(**kwargs) -> tuple[FakeBackend, str]:
    """A job whose first try lost its process, as a worker that was killed leaves it."""
    fake, ti = FakeBackend(), FakeTask(max_tries=2)
    op = operator(fake, **kwargs)
    _in_thread(op, ti)
    eventually(lambda: fake.started)
    name = ti.pushed["job_name"]
    eventually(lambda: fake.record(name).tries == 2)
    # Its event loop goes on in this process: what it may still do, it does for an owner that is no more.
    return fake, name


def second_try(fake, *, max_tries=2, **kwargs):
    """Run the next try to the end of the job, which succeeds as soon as the try owns it."""
    ti = FakeTask(id="try-2", try_number=2, max_tries=max_tries)
    op = operator(fake, **kwargs)
    thread, errors = _in_thread(op, ti)
    eventually(lambda: "job_name" in ti.pushed)
    name = ti.pushed["job_name"]
    eventually(lambda: _has_begun(fake, name))
    fake.verdict = SUCCESS
    thread.join(30 * PATIENCE)
    assert errors == []
    return fake.record(name)


def _has_begun(fake, name) -> bool:
    """Whether the job is that of the second try, and not about to begin again; while it is replaced there is none."""
    return _is_of(fake, name, "try-2")


def _is_of(fake, name, owner) -> bool:
    return name in fake.world.jobs and fake.record(name).owner == owner and not fake.record(name).renew


def test_a_retry_adopts_the_job_that_runs():
    """Its attempt goes on."""
    fake, name = left_running()

    record = second_try(fake)

    assert [attempt.number for attempt in record.attempts] == [1]
    assert (record.name, record.phase, record.retries) == (name, Phase.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({}, {"max_tries": 3}, id="cleared: Airflow allows more tries"),
        pytest.param({}, {"durable": False}, id="not durable"),
    ],
)
def test_a_cleared_task_ends_its_attempt_and_begins_the_next(first, second):
    """In the same record, with all its memory; nothing of the old attempt is left when the new one begins, and it is free."""
    fake, name = left_running(**first)
    uid = fake.record(name).uid

    record = second_try(fake, **second)

    assert [(attempt.number, attempt.reason) for attempt in record.attempts] == [(1, "Renewed"), (2, "Completed")]
    assert (record.uid, record.retries, record.charges, record.incidents) == (uid, 0, (), ())


def test_a_task_that_is_cleared_while_it_runs_says_so_before_it_ends():
    """Airflow changes nothing else of it that the next try could see."""
    fake, ti = FakeBackend(), FakeTask(max_tries=2)
    op = operator(fake, state="restarting")
    thread, _ = _in_thread(op, ti)
    eventually(lambda: fake.started)
    name = ti.pushed["job_name"]

    op.on_kill()

    eventually(lambda: fake.record(name).tries == CLEARED_TRIES)
    assert not fake.record(name).deletion
    record = second_try(fake)
    assert [attempt.reason for attempt in record.attempts] == ["Renewed", "Completed"]
    thread.join(30 * PATIENCE)


def test_a_retry_of_a_cleared_task_adopts_its_job():
    """The try after the clear began the job anew; when its process is killed, the next one goes on with that attempt."""
    fake, name = left_running()
    uid = fake.record(name).uid
    _in_thread(operator(fake), FakeTask(id="after-clear", try_number=2, max_tries=3))
    eventually(lambda: _is_of(fake, name, "after-clear") and fake.record(name).attempt == 2)

    record = second_try(fake, max_tries=3)

    assert [(attempt.number, attempt.reason) for attempt in record.attempts] == [(1, "Renewed"), (2, "Completed")]
    assert (record.uid, record.owner, record.retries) == (uid, "try-2", 0)


def test_a_task_that_is_killed_before_it_can_say_that_it_was_cleared_has_its_job_adopted():
    """A clear of a running task that is SIGKILLed at once looks like a lost worker: nothing is trained twice for it."""
    fake, name = left_running()

    record = second_try(fake, max_tries=2)

    assert [attempt.reason for attempt in record.attempts] == ["Completed"]
    assert record.name == name


def test_a_cleared_task_with_another_spec_ends_the_whole_job_first():
    """A clear after the script's arguments were mended, say: a job of another spec is not refused, but replaced."""
    fake, name = left_running()
    uid = fake.record(name).uid

    record = second_try(fake, max_tries=3, args=["--lr", "0.1"])

    assert record.uid != uid
    assert [attempt.number for attempt in record.attempts] == [1]


def test_what_a_policy_decided_is_done_by_the_next_try():
    """It is in the record when the result is taken, and in the job that is submitted then; one that would go is kept for it."""
    fake, ti = FakeBackend(verdict=FAILURE), FakeTask(max_tries=1)
    policy = TrainingRetryPolicy(rules={"WorkersFailed": "grow-memory"}, memory_factor=2, memory_limit="64Gi")
    asked = {"node_resources": {"memory": "8Gi"}, "retry_policy": policy, "on_finish_action": "delete_job"}
    with pytest.raises(TrainingFailed) as caught:
        operator(fake, **asked).execute(context(ti))
    assert caught.value.failure.reason == "WorkersFailed"
    assert fake.record(ti.pushed["job_name"]).advice == Advice(memory_factor=2.0, memory_limit="64Gi")

    fake.verdict = SUCCESS
    summary = operator(fake, **{**asked, "on_finish_action": "keep_job"}).execute(
        context(FakeTask(id="try-2", try_number=2, max_tries=1))
    )

    (role,) = fake.world.jobs[summary["job"]].blueprint.job.roles
    assert role.resources.memory == "16Gi"
    assert summary["attempts"] == 2


@pytest.mark.parametrize(
    ("memory", "limit", "because"),
    [
        pytest.param({"memory": "64Gi"}, "64Gi", "it had 64Gi of memory; memory_limit is 64Gi", id="at the limit"),
        pytest.param({"memory": "96Gi"}, "64Gi", "it had 96Gi of memory; memory_limit is 64Gi", id="above it"),
        pytest.param({}, "64Gi", "the job sets no node_resources.memory to increase", id="no memory is asked for"),
    ],
)
def test_memory_that_cannot_grow_is_no_reason_for_a_try(memory, limit, because):
    """The same memory would be too small again: the task fails, and the sentence says why."""
    fake, ti = FakeBackend(verdict=FAILURE), FakeTask(max_tries=3)
    policy = TrainingRetryPolicy(rules={"WorkersFailed": "grow-memory"}, memory_limit=limit)

    with pytest.raises(TrainingFailed) as caught:
        operator(fake, node_resources=memory, retry_policy=policy).execute(context(ti))

    decision = policy.evaluate(caught.value, 1, 3)
    assert decision.action is RetryAction.FAIL
    assert str(decision.reason).endswith(f"no retry, because it would fail again, since {because}")
    assert fake.record(ti.pushed["job_name"]).advice == Advice()


def test_memory_grows_until_it_is_at_its_limit():
    """8, 16 and 20 GiB; the try after that is spared."""
    fake = FakeBackend(verdict=FAILURE)
    policy = TrainingRetryPolicy(rules={"WorkersFailed": "grow-memory"}, memory_factor=2, memory_limit="20Gi")
    memory, decisions = [], []
    for number in range(1, 4):
        ti = FakeTask(id=f"try-{number}", try_number=number, max_tries=9)
        with pytest.raises(TrainingFailed) as caught:
            operator(fake, node_resources={"memory": "8Gi"}, retry_policy=policy).execute(context(ti))
        (role,) = fake.world.jobs[ti.pushed["job_name"]].blueprint.job.roles
        memory.append(role.resources.memory)
        decisions.append(policy.evaluate(caught.value, number, 9).action)

    assert memory == ["8Gi", "16Gi", "20Gi"]
    assert decisions == [RetryAction.RETRY, RetryAction.RETRY, RetryAction.FAIL]


def test_the_last_try_decides_nothing_for_a_next_one():
    """There is none."""
    fake, ti = FakeBackend(verdict=FAILURE), FakeTask(try_number=2, max_tries=1)
    policy = TrainingRetryPolicy(rules={"WorkersFailed": "grow-memory"}, memory_limit="64Gi")

    with pytest.raises(TrainingFailed):
        operator(fake, retry_policy=policy).execute(context(ti))

    assert fake.record(ti.pushed["job_name"]).advice == Advice()


def test_a_late_submission_of_an_overtaken_try_renews_nothing():
    """Only the one who takes the job from another owner begins it anew; asking twice is asking once."""
    fake, ti = FakeBackend(), FakeTask()
    run_without_collecting(fake, ti, seconds=0.3)
    (name,) = fake.world.jobs
    blueprint = fake.submitted[0]

    first = asyncio.run(submit_or_adopt(fake, blueprint, owner="try-2", fresh=True))
    again = asyncio.run(submit_or_adopt(fake, blueprint, owner="try-2", fresh=True))

    assert (first.how.value, again.how.value) == ("renewed", "renewed")
    assert dataclasses.replace(first.stored.record, history=()) == dataclasses.replace(again.stored.record, history=())
    assert [e.kind for e in fake.record(name).history].count("renewed") == 1


def test_the_same_job_of_another_dag_is_not_adopted():
    """A name that two DAGs have chosen: the second task fails with the first one's name, and the first goes on."""
    fake, name = left_running(name="shared")

    with pytest.raises(JobExistsError, match="belongs to task train of DAG nightly, run manual__1"):
        operator(fake, name="shared").execute(context(FakeTask(id="try-2", dag_id="weekly")))

    assert (name, fake.record("shared").owner) == ("shared", "try-1")
    assert second_try(fake, name="shared").owner == "try-2"
