from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from rallypoint.backends.contract import LogLine
from rallypoint.provider.claim import End, Ending
from rallypoint.provider.errors import SupervisionFailed, TrainingDeleted, TrainingFailed, TrainingTimedOut
from rallypoint.wire.plan import OrphanPolicy
from tests.operators.tasks import FAILURE, has_told, operator, run_without_collecting
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, Store, context


def test_a_job_is_submitted_supervised_and_told():
    """The summary is returned, its parts and the job's name go to XCom, and the result counts as taken."""
    fake, ti = FakeBackend(verdict=SUCCESS), FakeTask()

    summary = operator(fake, nodes=2, nproc_per_node=2).execute(context(ti))

    assert (summary["phase"], summary["attempts"], summary["step"], summary["world_size"]) == ("Succeeded", 1, 300, 4)
    for_the_page = {"_link_ElasticTrainingLink", "rallypoint_page"}
    assert {key: value for key, value in ti.pushed.items() if key not in for_the_page} == {
        "job_name": summary["job"],
        "attempts": 1,
        "incidents": [],
        "faults": 0,
        "final_step": 300,
        "metrics": {"accuracy": 0.97},
        "checkpoint": "/ckpt/step-300",
    }
    assert fake.record(summary["job"]).collected_by == "try-1"
    assert fake.closed


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        pytest.param({}, OrphanPolicy.STOP, id="by default it stops"),
        pytest.param({"orphan_policy": "continue"}, OrphanPolicy.CONTINUE, id="asked for"),
        pytest.param({"fault_tolerance": {"orphan_policy": "continue"}}, OrphanPolicy.CONTINUE, id="the job's own"),
    ],
)
def test_the_orphan_policy_of_a_task(arguments, policy):
    """A task's job does not outlive every supervisor by more than its lease, unless it is told to."""
    fake = FakeBackend(verdict=SUCCESS)

    operator(fake, **arguments).execute(context(FakeTask()))

    assert fake.submitted[0].plan.orphan_policy is policy


def test_a_failed_job_fails_the_task_with_its_story():
    """One exception tells which rank on which node ended how, with the last lines of its log."""
    fake, ti = FakeBackend(verdict=FAILURE), FakeTask()

    with pytest.raises(TrainingFailed) as caught:
        operator(fake).execute(context(ti))

    text = str(caught.value)
    assert "rank 3 on node 1 (host-b) exited with code 1: ValueError: bad batch" in text
    assert "line 2" in text
    assert ti.pushed["attempts"] == 1


def test_the_output_of_ranks_reaches_the_tasks_log(capsys):
    """Each line comes with its rank; that of rank 0 by default, and `get_logs=False` leaves it out."""
    fake = FakeBackend(verdict=SUCCESS)
    fake.lines = tuple(LogLine(rank=rank, stream="out", text=f"epoch {rank}", cursor="") for rank in range(2))

    operator(fake).execute(context(FakeTask()))
    assert ("[rank 0 out] epoch 0" in (told := capsys.readouterr().out), "epoch 1" in told) == (True, False)
    operator(fake, get_logs="all").execute(context(FakeTask(run_id="manual__2")))
    assert "[rank 1 out] epoch 1" in capsys.readouterr().out
    operator(fake, get_logs=False).execute(context(FakeTask(run_id="manual__3")))
    assert "epoch" not in capsys.readouterr().out


def test_the_intent_is_noted_before_anything_is_submitted():
    """The state store holds a hint for people, without which the job runs just as well."""
    store, fake, ti = Store(), FakeBackend(verdict=SUCCESS), FakeTask()

    operator(fake).execute(context(ti, task_state_store=store))

    name = ti.pushed["job_name"]
    where = {"backend": "local", "home": "", "namespace": "", "kubeconfig": "", "context": "", "conn_id": ""}
    assert store["rallypoint_job"] == {"name": name, **where, "owner": "try-1"}


def test_a_broken_state_store_costs_nothing():
    """The record is the truth."""

    class Broken(Store):
        def set(self, key, value):
            raise OSError("the API does not answer")

    summary = operator(FakeBackend(verdict=SUCCESS)).execute(context(FakeTask(), task_state_store=Broken()))

    assert summary["phase"] == "Succeeded"


def test_a_retry_adopts_the_job_of_a_try_that_was_killed():
    """The same job goes on under its new owner: nothing is started twice."""
    fake = FakeBackend()
    run_without_collecting(fake, FakeTask(), seconds=0.2)
    fake.verdict = SUCCESS

    summary = operator(fake).execute(context(FakeTask(id="try-2", try_number=2)))

    assert (summary["uid"], summary["attempts"], len(fake.submitted)) == ("uid-1", 1, 1)
    assert fake.started == [(1, 0)]
    assert fake.record(summary["job"]).owner == "try-2"


def test_what_ended_while_nobody_looked_is_taken_as_it_is():
    """A job that finished between two tries is not trained again."""
    fake = FakeBackend(verdict=SUCCESS)
    run_without_collecting(fake, FakeTask())

    summary = operator(fake).execute(context(FakeTask(id="try-2", try_number=2)))

    assert (summary["attempts"], len(fake.submitted), fake.started) == (1, 1, [(1, 0)])


def test_a_cleared_task_starts_the_next_attempt_of_the_same_record():
    """A result that was taken is not handed out again; the memory stays."""
    fake = FakeBackend(verdict=SUCCESS)
    operator(fake).execute(context(FakeTask()))

    summary = operator(fake).execute(context(FakeTask(id="cleared", max_tries=1)))

    assert (summary["uid"], summary["attempts"]) == ("uid-1", 2)


def test_a_retry_whose_earlier_try_took_the_result_and_was_killed_takes_it_again():
    """Airflow never heard of it: the try was killed, or taken for an orphan, between the two. Nothing is trained twice."""
    fake = FakeBackend(verdict=SUCCESS)
    first = operator(fake).execute(context(FakeTask(max_tries=2)))

    summary = operator(fake).execute(context(FakeTask(id="try-2", try_number=2, max_tries=2)))

    assert (summary["uid"], summary["attempts"]) == (first["uid"], 1)
    assert fake.record(summary["job"]).owner == fake.record(summary["job"]).collected_by == "try-2"


def test_another_run_is_another_job():
    """Two runs of one DAG train side by side."""
    fake = FakeBackend(verdict=SUCCESS)

    names = {operator(fake).execute(context(FakeTask(run_id=f"manual__{i}")))["job"] for i in range(2)}

    assert len(names) == 2


@pytest.mark.parametrize(
    ("action", "verdict", "kept"),
    [
        pytest.param("keep_job", SUCCESS, True, id="kept"),
        pytest.param("delete_job", SUCCESS, False, id="deleted"),
        pytest.param("delete_job", FAILURE, False, id="deleted after a failure too"),
        pytest.param("delete_succeeded_job", SUCCESS, False, id="deleted after success"),
        pytest.param("delete_succeeded_job", FAILURE, True, id="kept after a failure"),
    ],
)
def test_what_becomes_of_a_finished_job(action, verdict, kept):
    """`on_finish_action` decides about the job's folder."""
    fake, ti = FakeBackend(verdict=verdict), FakeTask()
    told: list[object] = []
    op = operator(fake, on_finish_action=action, on_success_callback=told.append)

    with contextlib.suppress(TrainingFailed):
        op.execute(context(ti))
        has_told(op, ti)

    assert bool(asyncio.run(fake.names())) is kept
    assert bool(told) is (verdict is SUCCESS)


def test_a_job_is_not_deleted_before_airflow_has_heard_that_it_succeeded():
    """The process may be killed just before: its retry must find the result, and train nothing again."""
    fake = FakeBackend(verdict=SUCCESS)
    first = operator(fake, on_finish_action="delete_job").execute(context(FakeTask(max_tries=2)))

    ti = FakeTask(id="try-2", try_number=2, max_tries=2)
    retry = operator(fake, on_finish_action="delete_job")
    summary = retry.execute(context(ti))
    has_told(retry, ti)

    assert (summary["uid"], summary["attempts"]) == (first["uid"], 1)
    assert len(fake.submitted) == 1
    assert not asyncio.run(fake.names())


def test_a_job_that_the_next_try_has_by_then_is_not_deleted():
    """Airflow may hear of a success so late that the task was cleared meanwhile."""
    fake, ti = FakeBackend(verdict=SUCCESS), FakeTask(max_tries=2)
    late = operator(fake, on_finish_action="delete_job")
    late.execute(context(ti))
    operator(fake).execute(context(FakeTask(id="try-2", try_number=2, max_tries=3)))

    has_told(late, ti)

    assert asyncio.run(fake.names())


def test_a_task_that_does_not_wait_leaves_a_supervisor_behind():
    """It ends once the job is submitted; nothing was started by itself."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, wait_for_completion=False)

    summary = op.execute(context(ti))

    assert (summary["phase"], summary["attempts"], fake.started) == ("", 0, [])
    assert op.left == [ti.pushed["job_name"]] == [summary["job"]]


def test_a_deferrable_task_submits_and_defers_with_names_only():
    """The trigger's arguments are stored as plain text: no environment, no arguments, no secrets."""
    fake, ti = FakeBackend(), FakeTask()

    with pytest.raises(TaskDeferred) as caught:
        operator(fake, deferrable=True, env={"TOKEN": "very secret"}).execute(context(ti))

    path, arguments = caught.value.trigger.serialize()
    assert path == "rallypoint.provider.trigger.ElasticTrainingTrigger"
    assert arguments == {
        "backend": "local",
        "home": "",
        "namespace": "",
        "context": "",
        "kubeconfig": "",
        "address": "",
        "storage": "",
        "conn_id": "",
        "supervisor_image": "",
        "name": ti.pushed["job_name"],
        "owner": "try-1",
        "poll_interval": 0.01,
        "get_logs": True,
        "deadline": None,
        "on_kill_action": "delete_job",
        "try_number": 1,
        "publish": True,
    }
    assert (caught.value.method_name, caught.value.timeout, fake.started) == ("execute_complete", None, [])


def test_a_deferrable_task_whose_job_is_over_does_not_defer():
    """A retry that finds the result takes it at once."""
    fake = FakeBackend(verdict=SUCCESS)
    run_without_collecting(fake, FakeTask())

    assert operator(fake, deferrable=True).execute(context(FakeTask(id="try-2")))["phase"] == "Succeeded"


def test_the_time_out_of_a_deferred_task_travels_as_a_point_in_time():
    """Airflow enforces none while a task is deferred; its sweep comes a minute after ours."""
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    op = operator(FakeBackend(), deferrable=True, execution_timeout=datetime.timedelta(seconds=100))

    with pytest.raises(TaskDeferred) as caught:
        op.execute(context(FakeTask(start_date=now)))

    assert caught.value.trigger.claim.deadline == now.timestamp() + 100
    assert 150 < caught.value.timeout.total_seconds() <= 160


def test_a_task_whose_time_is_over_cancels_its_job():
    """The deletion is left to a supervisor of its own, because this process is about to end."""
    fake, ti = FakeBackend(), FakeTask(start_date=datetime.datetime.now(tz=datetime.timezone.utc))
    op = operator(fake, execution_timeout=datetime.timedelta(seconds=0.1))

    with pytest.raises(TrainingTimedOut, match="execution_timeout; the job is being deleted"):
        op.execute(context(ti))

    assert op.left == [ti.pushed["job_name"]]
    assert fake.record(ti.pushed["job_name"]).deletion


class _AlarmedTask(FakeTask):
    """A task whose own alarm rings while the job's last words are pushed."""

    def xcom_push(self, key, value):
        if key == "final_step":
            raise AirflowTaskTimeout("Timeout, PID: 1")
        super().xcom_push(key, value)


def test_a_task_whose_alarm_rings_while_its_job_is_told_still_says_why(capfd):
    """Airflow's alarm comes right after our own deadline, anywhere in what is done about it."""
    ending = Ending(end=End.TIMEOUT, name="train", text="job train did not end within execution_timeout", summary={"step": 3})
    op = operator(FakeBackend(), deferrable=True)

    with pytest.raises(AirflowTaskTimeout):
        op.execute_complete(context(_AlarmedTask()), ending.to_event())

    assert "job train did not end within execution_timeout" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("end", "error"),
    [
        pytest.param(End.FAILED, TrainingFailed, id="failed"),
        pytest.param(End.DELETED, TrainingDeleted, id="deleted by another client"),
        pytest.param(End.TIMEOUT, TrainingTimedOut, id="out of time"),
        pytest.param(End.ERROR, SupervisionFailed, id="the loop broke"),
    ],
)
def test_a_resumed_task_fails_as_the_trigger_says(end, error):
    """Everything is in the event: `dag.test()` hands over nothing else."""
    event = Ending(end=end, name="digits", text="because").to_event()

    with pytest.raises(error, match="because"):
        operator(FakeBackend()).execute_complete(context(FakeTask()), event=event)


def test_a_resumed_task_takes_the_result():
    """The job was driven by the trigger; the task collects it and returns its summary."""
    fake = FakeBackend(verdict=SUCCESS)
    run_without_collecting(fake, FakeTask())
    (name,) = asyncio.run(fake.names())
    event = Ending(end=End.SUCCEEDED, name=name, summary={"job": name, **_nothing()}).to_event()

    summary = operator(fake).execute_complete(context(FakeTask()), event=event)

    assert summary["job"] == name
    assert fake.record(name).collected_by == "try-1"


def _nothing():
    return {"attempts": 1, "incidents": 0, "step": None, "metrics": {}, "checkpoint": ""}


def test_the_job_of_another_try_is_not_collected():
    """A try that was overtaken must not take its successor's result away."""
    fake = FakeBackend(verdict=SUCCESS)
    run_without_collecting(fake, FakeTask(id="try-2"))
    (name,) = asyncio.run(fake.names())
    event = Ending(end=End.SUCCEEDED, name=name, summary={"job": name, **_nothing()}).to_event()

    operator(fake).execute_complete(context(FakeTask(id="try-1")), event=event)

    assert not fake.record(name).collected_by


@pytest.mark.parametrize(
    ("tries", "deleted"),
    [pytest.param(1, False, id="a try is left"), pytest.param(0, True, id="it was the last try")],
)
def test_a_job_that_nobody_watches_is_left_to_the_next_try_if_there_is_one(tries, deleted):
    """When supervising broke, only the last try takes the job with it."""
    fake = FakeBackend()
    op = operator(fake, deferrable=True)
    with pytest.raises(TaskDeferred):
        op.execute(context(FakeTask(max_tries=tries)))
    (name,) = asyncio.run(fake.names())

    with pytest.raises(SupervisionFailed):
        op.execute_complete(context(FakeTask(max_tries=tries)), event=Ending(end=End.ERROR, name=name, text="boom").to_event())

    assert fake.record(name).deletion is deleted


@pytest.mark.parametrize("spawns", [pytest.param(True, id="it is left"), pytest.param(False, id="nobody can be left")])
def test_a_local_failure_on_the_last_try_does_not_cost_a_healthy_job(spawns):
    """A disk or the backend failed where the task ran: a supervisor of its own takes over, and the task fails as it would."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, deferrable=True)
    with pytest.raises(TaskDeferred):
        op.execute(context(ti))
    name = ti.pushed["job_name"]
    event = Ending(end=End.ERROR, name=name, text="boom", local_failure=True).to_event()
    if not spawns:
        op.spawn_supervisor = _no_process  # type: ignore[method-assign]

    with pytest.raises(SupervisionFailed, match="boom"):
        op.execute_complete(context(ti), event=event)

    assert not fake.record(name).deletion
    assert op.left == ([name] if spawns else [])


def _no_process(_):
    raise OSError("no more processes")


class _Vanishing(FakeBackend):
    """Somebody removes the job, or takes it over, right after its result was taken."""

    next_owner = ""

    async def save(self, record, *, version, blueprint=None):
        stored = await super().save(record, version=version, blueprint=blueprint)
        if record.collected_by and not self.next_owner:
            del self.world.jobs[record.name]
        elif record.collected_by and record.owner != self.next_owner:
            return await super().save(dataclasses.replace(record, owner=self.next_owner), version=stored.version)
        return stored


def test_a_finished_job_that_is_removed_meanwhile_does_not_fail_its_task():
    """The result is there already."""
    summary = operator(_Vanishing(verdict=SUCCESS), on_finish_action="delete_job").execute(context(FakeTask()))

    assert summary["phase"] == "Succeeded"


def test_a_finished_job_that_the_next_try_took_over_is_not_deleted():
    """Whose job it is counts at the moment of the deletion."""
    fake, ti = _Vanishing(verdict=FAILURE), FakeTask()
    fake.next_owner = "try-2"

    with pytest.raises(TrainingFailed):
        operator(fake, on_finish_action="delete_job").execute(context(ti))

    record = fake.record(ti.pushed["job_name"])
    assert (record.owner, record.deletion) == ("try-2", False)


def test_a_sweep_by_the_scheduler_leaves_a_job_that_has_ended():
    """Its result is there for the next try."""
    fake, ti = FakeBackend(verdict=SUCCESS), FakeTask()
    run_without_collecting(fake, ti)
    (name,) = asyncio.run(fake.names())

    with pytest.raises(TrainingTimedOut, match="the job ended later, and its result is kept"):
        operator(fake, deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, context(ti))

    assert not fake.record(name).deletion


def test_a_sweep_by_the_scheduler_cancels_the_job():
    """With no triggerer to report the time-out, the resumed task does."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, deferrable=True, execution_timeout=datetime.timedelta(seconds=1))
    with pytest.raises(TaskDeferred):
        op.execute(context(ti))

    with pytest.raises(TrainingTimedOut):
        op.resume_execution("__fail__", {"error": "Trigger timeout"}, context(ti))

    assert fake.record(ti.pushed["job_name"]).deletion


def test_a_trigger_that_broke_leaves_the_job_to_the_next_try():
    """A triggerer that cannot run the trigger does not cost the training."""
    fake, ti = FakeBackend(), FakeTask(max_tries=3)
    op = operator(fake, deferrable=True)
    with pytest.raises(TaskDeferred):
        op.execute(context(ti))

    with pytest.raises(SupervisionFailed, match="the trigger of job"):
        op.resume_execution("__fail__", {"error": "Trigger failure", "traceback": ["Traceback"]}, context(ti))

    assert not fake.record(ti.pushed["job_name"]).deletion
