"""Sensors in a worker: what a poke comes to, and what is wrong from the beginning."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from rallypoint.provider.errors import ConditionImpossible, JobHangs, OptionError
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.watching import JobConditionTrigger
from rallypoint.sensors import HangSensor, JobStateSensor, ProgressSensor, RendezvousSensor
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, Store, context
from tests.sensors.sensors import Desk, finished, on


def test_a_job_that_is_not_there_yet_is_waited_for():
    """A sensor may start before the task that submits the job."""
    assert not on(FakeBackend(), JobStateSensor).poke(context(FakeTask())).is_done


def test_a_phase_that_came_ends_the_wait_with_its_values():
    """Where the job stands goes to XCom, and the backend is released."""
    fake = finished(FakeBackend(verdict=SUCCESS))
    closed = fake.closed

    poked = on(fake, JobStateSensor).poke(context(FakeTask()))

    assert poked.is_done
    values = dict(poked.xcom_value or {})
    assert (values["job"], values["phase"], values["nodes"], fake.closed) == ("digits", "Succeeded", 2, closed + 1)


def test_every_sensor_finds_what_is_so():
    """Each of the four, on a job that has succeeded."""
    fake = finished(FakeBackend(verdict=SUCCESS))
    task = context(FakeTask())

    assert on(fake, ProgressSensor, min_step=300, deferrable=False).execute(task)["step"] == 300
    assert on(fake, ProgressSensor, metric="accuracy", above=0.9, deferrable=False).execute(task)["metrics"] == {
        "accuracy": 0.97
    }
    assert on(fake, JobStateSensor, condition="ResourcesDeployed", condition_value=False).execute(task)["phase"] == "Succeeded"
    assert on(fake, HangSensor, deferrable=False).execute(task) == on(fake, HangSensor).execute(task)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({}, ConditionImpossible, id="by default"),
        pytest.param({"on_job_end": "skip"}, AirflowSkipException, id="skip"),
        pytest.param({"soft_fail": True}, AirflowSkipException, id="soft_fail"),
        pytest.param({"never_fail": True}, AirflowSkipException, id="never_fail"),
    ],
)
@pytest.mark.parametrize("deferrable", [True, False])
def test_what_cannot_come_ends_the_sensor_at_once(arguments, error, deferrable):
    """Nobody waits for the time-out of a sensor whose job has taken another way."""
    fake = finished(FakeBackend(verdict=SUCCESS))
    sensor = on(fake, JobStateSensor, phase="Failed", deferrable=deferrable, **arguments)

    with pytest.raises(error, match="digits is Succeeded, so Failed is no longer possible"):
        sensor.execute(context(FakeTask()))


def test_the_end_of_the_job_may_be_a_success():
    """A guard that has seen nothing has done its work; what it returns says how the job ended."""
    fake = finished(FakeBackend(verdict=SUCCESS))

    assert on(fake, JobStateSensor, phase="Failed", on_job_end="succeed").execute(context(FakeTask()))["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("on_hang", "end"), [("fail", "succeed"), ("succeed", "skip"), ("evidence", "skip")], ids=["guard", "branch", "evidence"]
)
def test_a_hang_sensor_ends_as_its_purpose_asks(on_hang, end):
    """A guard is content without a hang; what acts on one is skipped."""
    assert HangSensor(task_id="wait", job_name="digits", on_hang=on_hang).on_job_end == end
    assert HangSensor(task_id="wait", job_name="digits", on_hang=on_hang, on_job_end="fail").on_job_end == "fail"


def test_a_hang_fails_its_guard_and_is_a_result_for_others():
    """What the trigger found is judged by the sensor that is resumed."""
    event = Finding(found=Found.MET, text="job digits: a hang: rank 1 waits", values={"hang": "verdict"}).to_event()

    with pytest.raises(JobHangs, match="rank 1 waits"):
        on(FakeBackend(), HangSensor).execute_complete(context(FakeTask()), event=event)
    assert on(FakeBackend(), HangSensor, on_hang="succeed").execute_complete(context(FakeTask()), event=event) == {
        "hang": "verdict"
    }


# --- Which job


@pytest.mark.parametrize(
    ("task", "asked", "names"),
    [
        pytest.param(FakeTask(), {}, {("train", -1): "digits"}, id="a task"),
        pytest.param(FakeTask(map_index=2), {}, {("train", 2): "digits", ("train", 1): "other"}, id="the same index"),
        pytest.param(FakeTask(map_index=2), {}, {("train", -1): "digits"}, id="mapped on one job"),
        pytest.param(FakeTask(), {"job_map_index": 1}, {("train", 1): "digits", ("train", -1): "other"}, id="one index"),
    ],
)
def test_the_job_may_be_that_of_another_task(task, asked, names):
    """Its name is found as soon as that task has pushed it."""
    fake, desk = finished(FakeBackend(verdict=SUCCESS)), Desk()
    sensor = on(fake, JobStateSensor, desk, job_task_id="train", **asked)

    assert not sensor.poke(context(task)).is_done
    desk.names.update(names)
    assert dict(sensor.poke(context(task)).xcom_value or {})["job"] == "digits"


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "success"])
def test_a_task_that_will_name_no_job_ends_the_wait(state):
    """The message names the task and its state."""
    sensor = on(FakeBackend(), JobStateSensor, Desk(states={("train", -1): state}), job_task_id="train")

    with pytest.raises(ConditionImpossible, match=f"task train is {state} and has pushed no XCom job_name"):
        sensor.execute(context(FakeTask()))


# --- Deferral, and what is kept between pokes


def test_sensors_defer_with_names_only():
    """The trigger survives its row in the database, and the sensor's own time-out travels along."""
    sensor = on(FakeBackend(), RendezvousSensor, min_nodes=2, timeout=60, conn_id="rally")

    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(context(FakeTask()))

    path, arguments = caught.value.trigger.serialize()
    assert path == "rallypoint.provider.sensing.watching.JobConditionTrigger"
    none = ("job_task_id", "job_map_index", "role", "backend", "home", "namespace", "kubeconfig", "cluster_context")
    assert arguments == {
        "condition": {"kind": "rendezvous", "min_nodes": 2, "min_world_size": 0, "stable_for": 0.0, "missing_for": None},
        "job_name": "digits",
        "asked_by": {"dag_id": "nightly", "run_id": "manual__1", "task_id": "train", "map_index": -1},
        "conn_id": "rally",
        "poll_interval": 5.0,
        **dict.fromkeys(none),
    }
    assert JobConditionTrigger(**arguments).serialize() == (path, arguments)
    assert caught.value.timeout == datetime.timedelta(seconds=60)


def test_a_sensor_that_starts_from_its_trigger_names_the_fields_that_are_templates():
    """Airflow renders those of a trigger that bear the name of one of the sensor's."""
    sensor = RendezvousSensor(task_id="wait", job_name="{{ run_id }}", start_from_trigger=True, timeout=60)
    start = sensor.start_trigger_args
    assert start is not None
    arguments = start.trigger_kwargs or {}

    trigger = JobConditionTrigger(**arguments)
    assert start.trigger_cls == trigger.serialize()[0]
    assert trigger.serialize()[1] == {**arguments, "asked_by": None}
    assert arguments["condition"] == trigger.condition.words()
    assert set(sensor.template_fields) <= arguments.keys()
    assert all(hasattr(trigger, field) for field in sensor.template_fields)


def test_what_has_to_last_is_counted_over_reschedules():
    """Each poke of mode `reschedule` is a process of its own; the task's state store keeps the count, for this try alone."""
    fake, store = finished(FakeBackend(verdict=SUCCESS)), Store()
    arguments: dict[str, Any] = {"phase": "Failed", "mode": "reschedule", "deferrable": False, "on_job_end": "succeed"}

    on(fake, JobStateSensor, **arguments).poke(context(FakeTask(), task_state_store=store))

    kept = store["rallypoint_sensor"]
    assert (kept["try"], kept["memory"]["uid"]) == ("try-1", fake.record("digits").uid)
    del fake.world.jobs["digits"]
    again = on(fake, JobStateSensor, **arguments)
    assert again.poke(context(FakeTask(), task_state_store=store)).is_done, "it knows that there was one"
    assert not on(fake, JobStateSensor, **arguments).poke(context(FakeTask(id="try-2"), task_state_store=store)).is_done


def test_the_sensors_time_out_is_airflows_own():
    """A deferred sensor that waited too long ends like any other sensor."""
    with pytest.raises(AirflowSensorTimeout):
        on(FakeBackend(), JobStateSensor).resume_execution("__fail__", {"error": "Trigger timeout"}, context(FakeTask()))


@pytest.mark.parametrize(
    ("sensor", "arguments", "says"),
    [
        pytest.param(
            JobStateSensor,
            {"phase": "Done"},
            "phase: 'Done' is not allowed; expected one of Suspended",
            id="phase",
        ),
        pytest.param(
            RendezvousSensor,
            {"min_nodes": 0},
            "min_nodes: 0 is not allowed; expected a whole number",
            id="zero",
        ),
        pytest.param(RendezvousSensor, {"min_nodes": True}, "min_nodes: True is not allowed", id="true"),
        pytest.param(
            ProgressSensor,
            {"min_step": 0},
            "min_step: 0 is not allowed; expected a whole number",
            id="no step",
        ),
        pytest.param(ProgressSensor, {"no_progress_for": 0}, "no_progress_for: 0 is not allowed", id="no time"),
        pytest.param(
            HangSensor,
            {"on_hang": "panic"},
            "on_hang: 'panic' is not allowed; expected one of fail",
            id="on_hang",
        ),
        pytest.param(
            HangSensor,
            {"on_job_end": "cry"},
            "on_job_end: 'cry' is not allowed; expected one of fail",
            id="the end",
        ),
        pytest.param(HangSensor, {"job_name": None}, "job_name: None is not allowed", id="no job"),
        pytest.param(
            HangSensor,
            {"job_task_id": "train"},
            "job_name: 'digits' is not allowed; expected a value for exactly one of",
            id="two jobs",
        ),
        pytest.param(HangSensor, {"job_map_index": 1}, "job_map_index: 1 is not allowed", id="an index of no task"),
        pytest.param(HangSensor, {"poke_interval": 0}, "poke_interval: 0.0 is not allowed", id="without a pause"),
        pytest.param(HangSensor, {"backend": "slurm"}, "backend: 'slurm' is not allowed", id="backend"),
        pytest.param(
            HangSensor,
            {"namespace": "x"},
            "namespace: 'x' is not allowed; expected no value; backend 'local' accepts only the arguments home",
            id="place",
        ),
        pytest.param(
            HangSensor, {"start_from_trigger": True, "deferrable": False}, "start_from_trigger: True is not", id="start"
        ),
    ],
)
def test_a_wrong_argument_is_an_error_when_the_dag_is_parsed(sensor, arguments, says):
    """The field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        sensor(**{"task_id": "wait", "job_name": "digits", **arguments})
