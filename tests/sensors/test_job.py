from __future__ import annotations

import asyncio
import datetime

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred

from rallypoint.job import ElasticJob
from rallypoint.provider.conditions import Finding, Found
from rallypoint.provider.errors import ConditionImpossible, OptionError
from rallypoint.provider.watching import JobConditionTrigger
from rallypoint.sensors import JobPhaseSensor, RendezvousSensor
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context
from tests.provider.triggers import Trigger, ending
from tests.waiting import eventually_async


class PhaseSensor(JobPhaseSensor):
    """Looks at jobs in memory."""

    def __init__(self, *, fake, **kwargs):
        super().__init__(task_id="wait", job_name="digits", **kwargs)
        self.fake = fake

    def open_backend(self):
        return self.fake


class MeetingSensor(RendezvousSensor):
    """Looks at jobs in memory."""

    def __init__(self, *, fake, **kwargs):
        super().__init__(task_id="wait", job_name="digits", **kwargs)
        self.fake = fake

    def open_backend(self):
        return self.fake


class Watching(JobConditionTrigger):
    """Looks at jobs in memory."""

    def __init__(self, fake, **condition):
        super().__init__(backend="local", home="", name="digits", condition=condition, poll_interval=0.01)
        self.fake = fake

    def open_backend(self):
        return self.fake


async def submit(fake: FakeBackend) -> None:
    job = {"name": "digits", "entrypoint": "train.py", "nodes": 2, "fault_tolerance": {"retry_limit": 0}}
    await fake.submit(fake.plan(ElasticJob.model_validate(job)), owner="try-1")


def finished(fake: FakeBackend) -> FakeBackend:
    """The backend after its job ran to its verdict."""

    async def run():
        await submit(fake)
        await ending(Trigger(fake))

    asyncio.run(run())
    return fake


def test_a_job_that_is_not_there_yet_is_waited_for():
    """A sensor may start before the task that submits the job."""
    poked = PhaseSensor(fake=FakeBackend()).poke(context(FakeTask()))

    assert not poked.is_done


def test_a_phase_that_came_ends_the_wait_with_its_values():
    """Where the job stands goes to XCom."""
    poked = PhaseSensor(fake=finished(FakeBackend(verdict=SUCCESS))).poke(context(FakeTask()))

    assert poked.is_done
    values = dict(poked.xcom_value or {})
    assert (values["job"], values["phase"], values["nodes"]) == ("digits", "Succeeded", 2)


def test_a_phase_that_cannot_come_fails_the_sensor_at_once():
    """Nobody waits for the time-out of a sensor whose job has taken another way."""
    with pytest.raises(ConditionImpossible, match="digits is Succeeded, so Failed will not come"):
        PhaseSensor(fake=finished(FakeBackend(verdict=SUCCESS)), phase="Failed").poke(context(FakeTask()))


def test_a_deferrable_sensor_looks_first():
    """What is so already needs no trigger."""
    fake = finished(FakeBackend(verdict=SUCCESS))

    assert PhaseSensor(fake=fake, deferrable=True).execute(context(FakeTask()))["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("sensor", "condition"),
    [
        pytest.param(PhaseSensor, {"phase": "Succeeded", "min_nodes": 0}, id="a phase"),
        pytest.param(MeetingSensor, {"phase": "", "min_nodes": 1}, id="a rendezvous"),
    ],
)
def test_a_deferrable_sensor_defers_with_names_only(sensor, condition):
    """Its trigger survives its row in the database, and its own time-out travels along."""
    with pytest.raises(TaskDeferred) as caught:
        sensor(fake=FakeBackend(), deferrable=True, timeout=60).execute(context(FakeTask()))

    path, arguments = caught.value.trigger.serialize()
    assert path == "rallypoint.provider.watching.JobConditionTrigger"
    where = {"backend": "local", "home": "", "namespace": "", "kubeconfig": "", "context": ""}
    assert arguments == {**where, "name": "digits", "condition": condition, "poll_interval": 5.0}
    assert JobConditionTrigger(**arguments).serialize() == (path, arguments)
    assert caught.value.timeout == datetime.timedelta(seconds=60)


async def test_the_trigger_waits_for_the_rendezvous():
    """It fires once enough nodes train, and releases its backend."""
    fake = FakeBackend()
    waiting = asyncio.create_task(_first(Watching(fake, min_nodes=2)))
    await submit(fake)
    driving = asyncio.create_task(ending(Trigger(fake)))

    finding = await waiting

    assert (finding.found, finding.values["nodes"], fake.closed) == (Found.MET, 2, 1)
    fake.verdict = SUCCESS
    await driving


async def test_the_trigger_fires_when_waiting_has_become_useless():
    """The resumed sensor fails with the reason."""
    fake = FakeBackend(verdict=SUCCESS)
    await submit(fake)
    await ending(Trigger(fake))

    finding = await _first(Watching(fake, phase="Failed"))

    with pytest.raises(ConditionImpossible, match="will not come"):
        PhaseSensor(fake=fake, phase="Failed").execute_complete(context(FakeTask()), event=finding.to_event())


async def test_a_trigger_that_is_cancelled_releases_its_backend():
    """A triggerer that stops leaves nothing open."""
    fake = FakeBackend()
    waiting = asyncio.create_task(_first(Watching(fake, min_nodes=2)))
    await eventually_async(lambda: not waiting.done())
    await asyncio.sleep(0.05)

    waiting.cancel()
    await asyncio.wait([waiting])

    assert fake.closed == 1


async def _first(trigger) -> Finding:
    (event,) = [event async for event in trigger.run()]
    return Finding.from_event(event.payload)


def test_a_resumed_sensor_returns_what_the_trigger_found():
    """The values are those of the event."""
    event = Finding(found=Found.MET, text="there", values={"phase": "Running"}).to_event()

    assert PhaseSensor(fake=FakeBackend()).execute_complete(context(FakeTask()), event=event) == {"phase": "Running"}


def test_the_sensors_time_out_is_airflows_own():
    """A deferred sensor that waited too long ends like any other sensor."""
    with pytest.raises(AirflowSensorTimeout):
        PhaseSensor(fake=FakeBackend()).resume_execution("__fail__", {"error": "Trigger timeout"}, context(FakeTask()))


@pytest.mark.parametrize(
    ("sensor", "arguments", "says"),
    [
        pytest.param(JobPhaseSensor, {"phase": "Done"}, "phase: 'Done' is not allowed; expected one of Resuming", id="phase"),
        pytest.param(RendezvousSensor, {"min_nodes": 0}, "min_nodes: 0 is not allowed; expected a whole number", id="zero"),
        pytest.param(RendezvousSensor, {"min_nodes": True}, "min_nodes: True is not allowed", id="true"),
    ],
)
def test_a_wrong_option_is_an_error_when_the_dag_is_parsed(sensor, arguments, says):
    """The field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        sensor(task_id="wait", job_name="digits", **arguments)
