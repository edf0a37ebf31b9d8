"""Sensors of one role of a job with several roles."""

from __future__ import annotations

import dataclasses

import pytest
from airflow.sdk.exceptions import TaskDeferred

from rallypoint.provider.errors import ConditionImpossible
from rallypoint.provider.sensing.conditions import ProgressCondition, StateCondition
from rallypoint.provider.sensing.evaluation import judge
from rallypoint.provider.sensing.finding import Found
from rallypoint.provider.sensing.observation import Memory, Seen
from rallypoint.provider.sensing.streams import elastic_record, simple_record
from rallypoint.sensors import HangSensor, JobStateSensor, ProgressSensor, RendezvousSensor
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.supervision.role_records import ConductorRecord, RoleRecord
from rallypoint.wire.role_plans import RolePlan
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.records import failed, record, succeeded
from tests.provider.tasks import FakeTask, context
from tests.sensors.sensors import finished, on

ROLES = {"trainer": True, "rollout": False}


def found(condition, role: str, job: JobRecord | None = None, roles=ROLES):
    finding, _ = judge(condition, "rl", Seen(record=job or record(), role=role, roles=roles), Memory())
    return finding


@pytest.mark.parametrize(
    ("sensor", "arguments", "says"),
    [
        (ProgressSensor, {"min_step": 1}, "because job digits has one role; omit role"),
        (RendezvousSensor, {}, "because job digits has one role; omit role"),
        (HangSensor, {"on_job_end": "fail"}, "because job digits has one role; omit role"),
        (JobStateSensor, {}, "because job digits has one role; omit role"),
    ],
)
def test_a_job_of_one_role_has_no_other_role(sensor, arguments, says):
    """The sensor fails at once, in a worker."""
    fake = finished(FakeBackend(verdict=SUCCESS))

    with pytest.raises(ConditionImpossible, match=f"role: 'trainer' is not allowed, {says}"):
        on(fake, sensor, role="trainer", **arguments).execute(context(FakeTask()))


def test_the_trigger_is_given_the_role():
    """As it is rendered."""
    with pytest.raises(TaskDeferred) as caught:
        on(FakeBackend(), JobStateSensor, role="trainer").execute(context(FakeTask()))

    _, arguments = caught.value.trigger.serialize()
    assert arguments["role"] == "trainer"


@pytest.mark.parametrize(
    ("condition", "role", "says"),
    [
        (ProgressCondition(min_step=1), "", "role: '' is not allowed; expected an elastic role of job rl: trainer"),
        (
            ProgressCondition(min_step=1),
            "rollout",
            "role: 'rollout' is not allowed; expected an elastic role of job rl: trainer",
        ),
        (StateCondition(phase="Running"), "judge", "role: 'judge' is not allowed; expected a role of job rl: trainer, rollout"),
    ],
)
def test_a_role_that_cannot_be_meant_ends_the_wait(condition, role, says):
    """With those that can."""
    finding = found(condition, role)
    assert (finding.found, finding.text) == (Found.IMPOSSIBLE, says)


def test_a_job_without_an_elastic_role_has_no_progress():
    """The other sensor is named."""
    finding = found(ProgressCondition(min_step=1), "", roles={"rollout": False})
    assert finding.text.endswith("job rl has no elastic role; use JobStateSensor")


@pytest.mark.parametrize("role", ["", "trainer", "rollout"])
def test_the_state_of_the_job_and_of_each_role_can_be_waited_for(role):
    """The values name the job and the role."""
    finding = found(StateCondition(phase="Running"), role)
    assert finding.found is Found.MET
    assert finding.values.get("role", "") == role
    assert not role or finding.values["job"] == "rl"


# --- The record of a role -----------------------------------------------------------------------------------------------------


def named(job: JobRecord, name: str) -> JobRecord:
    return dataclasses.replace(job, name=name)


def test_a_role_that_has_not_begun_is_waited_for_while_its_job_goes_on():
    """And ends with it."""
    assert elastic_record(record(), None, "rl-trainer") is None
    ended = elastic_record(failed(), None, "rl-trainer")
    assert ended is not None
    assert (ended.name, ended.phase) == ("rl-trainer", Phase.FAILED)


def test_a_role_that_failed_may_run_again_while_its_job_goes_on():
    """The conductor resets the job; what fails the job ends the role, too."""
    own = named(failed(), "rl-trainer")
    again, over = elastic_record(record(), own, "rl-trainer"), elastic_record(failed(), own, "rl-trainer")
    assert again is not None
    assert over is not None
    assert (again.phase, over.phase) == (Phase.RESETTING, Phase.FAILED)


def test_a_role_that_was_stopped_ends_with_its_job():
    """Its own job is suspended, which nobody resumes."""
    own = dataclasses.replace(record(), name="rl-trainer", phase=Phase.SUSPENDED)
    found = elastic_record(failed(), own, "rl-trainer")
    assert found is not None
    assert found.phase is Phase.FAILED


def test_a_role_that_succeeded_has_succeeded():
    """Whatever its job does then."""
    own = named(succeeded(), "rl-trainer")
    for job in (record(), failed()):
        found = elastic_record(job, own, "rl-trainer")
        assert found is not None
        assert found.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(("done", "phase"), [((), Phase.RUNNING), ((0,), Phase.RUNNING), ((0, 1), Phase.SUCCEEDED)])
def test_a_simple_role_has_succeeded_once_all_instances_have(done, phase):
    """Of the whole role; before that it stands as its job does."""
    conductor = ConductorRecord(roles=(RoleRecord(name="rollout", incarnations=(1, 1), done=done),))
    job = dataclasses.replace(record(), conductor=conductor)
    found = simple_record(job, RolePlan(name="rollout", elastic=False, total=2))
    assert (found.phase, found.name) == (phase, f"{job.name}-rollout")
