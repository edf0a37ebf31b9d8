"""A job that stands in an AppWrapper: the controller decides, and our record tells what it has forgotten."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.labels import ATTEMPT, FIRST, JOB, PART, UID
from rallypoint.backends.kubernetes.watching.views import pod_view
from rallypoint.backends.kubernetes.wrapped import seen
from rallypoint.backends.kubernetes.wrapped.blueprint import draw
from rallypoint.report.incidents import judgement
from rallypoint.supervision.actions import Action, CreateComponents, Purge, RemoveComponents, SuspendComponents
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.observation import CreateError, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.incident import Cause, Rung
from rallypoint.wire.status import Outcome
from tests.kube.wrappers import START, Wrapped, wrapper

MANIFEST = wrapper()
POLICY = Policy.from_plan(draw(MANIFEST | {"spec": MANIFEST["spec"] | {"suspend": False}}, namespace="default").plan)
LAST_WORDS = ("Traceback", "ValueError: bad")


@dataclass
class Followed:
    """A wrapper under its controller's rules, and a job of ours that follows it; turns are made when a test says so."""

    annotations: dict[str, str] = field(default_factory=dict)
    record: JobRecord = field(default_factory=lambda: JobRecord.new(name="train", uid="u1", digest="d", owner="cli", now=START))
    world: Wrapped | None = None
    errors: tuple[CreateError, ...] = ()
    actions: tuple[Action, ...] = ()
    done: bool = False

    def at(self, t: float, **told: Any) -> Followed:
        """Let something happen at a second, the controller look, and make turns until nothing changes."""
        if self.world is not None:
            self.world.tell(**told)
        for _ in range(5):
            self._control(t)
            self._apply(self.turn(t))
        return self

    def turn(self, t: float) -> Decision:
        """Make one turn, through JSON."""
        decision = reconcile(self.record, self.observed(), POLICY, START + t)
        self.record = JobRecord.from_json(decision.record.to_json())
        self.actions, self.done = decision.actions, decision.done
        return decision

    def observed(self) -> Observation:
        """What the backend would see."""
        if self.world is None:
            return Observation(create_errors=self.errors)
        views = [pod_view(pod) for pod in self._pods()]
        pods = [view for view in views if view is not None]
        tails = {pod.uid: LAST_WORDS for pod in pods if pod.phase == "Failed"}
        return Observation(told=seen.told(self.world.object), nodes=seen.nodes(self.record, pods, {}, tails))

    def _control(self, t: float) -> None:
        if self.world is not None:
            self.world.look(t)
            metadata = self.world.object["metadata"]
            if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
                self.world = None

    def _apply(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, CreateComponents) and self.world is None:
                made = copy.deepcopy(MANIFEST)
                made["metadata"]["annotations"] = {**self.annotations, ATTEMPT: str(action.attempt)}
                made["spec"]["suspend"] = self.record.suspend
                self.world = Wrapped(made)
            elif isinstance(action, RemoveComponents) and self.world is not None:
                self.world.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            elif isinstance(action, SuspendComponents) and self.world is not None:
                self.world.object["spec"]["suspend"] = action.suspend
                self.world.object["metadata"]["annotations"][seen.SUSPENDED] = "true" if action.suspend else "false"

    def _pods(self) -> list[dict[str, Any]]:
        assert self.world is not None
        made = []
        for index, pod in enumerate(self.world.pods):
            labels = {JOB: "train", UID: "u1", PART: "wrapped", FIRST: "0", "training.kubeflow.org/replica-index": str(index)}
            metadata = {"name": f"p{index}", "uid": f"{id(pod)}", "labels": labels, **pod["metadata"]}
            statuses = [{"name": "pytorch", **status} for status in pod["status"].get("containerStatuses", [])]
            if pod["status"]["phase"] == "Running":
                statuses = [{"name": "pytorch", "state": {"running": {}}}]
            made.append({**pod, "metadata": metadata, "status": {**pod["status"], "containerStatuses": statuses}})
        return made

    @property
    def conditions(self) -> dict[str, tuple[bool, str, float]]:
        """The record's conditions, with their times in seconds of the story."""
        return {c.type.value: (c.value, c.reason, round(c.at - START, 3)) for c in self.record.conditions}

    @property
    def attempts(self) -> list[tuple[int, str]]:
        """The attempts and why each ended."""
        return [(attempt.number, attempt.reason) for attempt in self.record.attempts]


def running(**annotations: str) -> Followed:
    """Return a job whose two pods run at second 10."""
    prefix = "workload.codeflare.dev.appwrapper/"
    job = Followed(annotations={prefix + key: text for key, text in annotations.items()})
    return job.at(0).at(10, pods="RR")


def test_phases_and_conditions_are_the_controllers() -> None:
    """From its creation to its success a job has the phases, conditions and times that the AppWrapper has."""
    job = Followed().at(0)
    assert (job.record.phase, job.record.attempt) == (Phase.RUNNING, 1)
    assert job.conditions["ResourcesDeployed"] == (True, "Resuming", 0.0)

    job.at(10, pods="RR")
    assert job.conditions["PodsReady"] == (True, "SufficientPodsReady", 10.0)
    assert job.record.attempts[0].ready_at == START + 10

    job.at(130, pods="SS")
    assert (job.record.phase, job.conditions["QuotaReserved"]) == (Phase.SUCCEEDED, (False, "Succeeded", 130.0))
    assert job.record.verdict is not None
    assert job.record.verdict.outcome is Outcome.SUCCEEDED
    assert (job.done, job.record.released, job.actions) == (True, True, ())
    assert job.attempts == [(1, "Completed")]


def test_a_retry_is_told_with_pods_codes_hosts_and_last_words() -> None:
    """What the controller forgets with the reset stands in the record: who failed, its code, its host and its last words."""
    job = running().at(100, pods="R F(3)").at(160)
    assert (job.record.phase, job.record.retries) == (Phase.RESETTING, 1)
    job.at(165, gone=True).at(190)

    assert (job.record.phase, job.record.attempt, job.attempts) == (Phase.RUNNING, 2, [(1, "FoundFailedPods"), (2, "")])
    [pod] = job.record.incidents
    assert pod.culprit is not None
    assert (pod.id.attempt, pod.id.node) == (1, 1)
    assert (pod.culprit.exit_code, pod.culprit.host, pod.culprit.log_tail) == (3, "host", LAST_WORDS)
    assert (pod.cause, pod.rung) == (Cause.NODE, Rung.RESET)
    assert judgement(pod).endswith("charged to the reset budget")
    assert "node 1 on host" in job.record.attempts[0].message
    assert any(line.kind == "resetting" and line.detail.startswith("retry 1") for line in job.record.history)


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([(100, "F(1) F(3)")], id="both at once"),
        pytest.param([(100, "R F(3)"), (101, "F(1) F(3)"), (102, "F(1) F(3)")], id="one after the other"),
        pytest.param([(100, "R F(137)"), (155, "F(1) F(137)")], id="killed, and what follows in the others"),
    ],
)
def test_one_failure_is_one_incident_whatever_ends_with_it(looks: list[tuple[int, str]]) -> None:
    """The other pods of the attempt lose their peer, and the controller resets all: neither is another fault."""
    job = running()
    for at, pods in looks:
        job.at(at, pods=pods)
    job.at(170).at(175, gone=True).at(200)

    assert (job.record.phase, job.record.retries) == (Phase.RUNNING, 1)
    [incident] = job.record.incidents
    assert (incident.cause, incident.rung, incident.id.attempt) == (Cause.NODE, Rung.RESET, 1)
    lines = [line.detail for line in job.record.history if line.kind == "node-lost"]
    assert len({line.partition(" on ")[0] for line in lines}) == len(lines) == 2


def test_a_reset_that_nobody_has_seen_is_an_attempt() -> None:
    """A supervisor that slept through a whole reset tells two attempts: the deployment has another time."""
    job = running()
    world = job.world
    assert world is not None
    world.tell(pods="R F(1)")
    world.look(100)
    world.look(160)
    world.tell(gone=True)
    world.look(165)
    world.look(190)

    job.at(200, pods="RR")

    assert (job.record.phase, job.record.retries, len(job.attempts)) == (Phase.RUNNING, 1, 2)
    assert job.record.attempts[1].started_at == START + 190


def test_an_exhausted_budget_fails_the_job() -> None:
    """The end is the controller's: failed with its reason, and released when the controller has let go of everything."""
    job = running(retryLimit="0", failureGracePeriodDuration="0s").at(100, pods="R F(1)")
    assert (job.record.phase, job.done) == (Phase.FAILED, False)

    job.at(105, gone=True)

    assert (job.done, job.record.released) == (True, True)
    assert job.record.verdict is not None
    assert (job.record.verdict.outcome, job.record.verdict.reason) == (Outcome.FAILED, "FoundFailedPods")


def test_an_evacuation_is_free() -> None:
    """The controller leaves a bad host without counting it, and so do we."""
    job = running()
    assert job.world is not None
    job.world.object["metadata"]["annotations"]["workload.codeflare.dev.appwrapper/retryPausePeriodDuration"] = "0s"
    job.at(100, pods="R! R", flagged={"host": frozenset({"nvidia.com/gpu"})}).at(105, gone=True, flagged={})

    assert (job.record.attempt, job.record.retries) == (2, 0)
    assert [incident.cause for incident in job.record.incidents] == [Cause.EVACUATION]


def test_a_persons_suspension_is_carried_out_and_taken_back() -> None:
    """The wish goes to the AppWrapper, costs nothing, and ends with the wish."""
    job = running()
    job.record = dataclasses.replace(job.record, suspend=True)
    job.at(100)
    assert job.record.phase is Phase.SUSPENDING
    job.at(105, gone=True)
    assert (job.record.phase, job.attempts) == (Phase.SUSPENDED, [(1, "Suspended")])

    job.record = dataclasses.replace(job.record, suspend=False)
    job.at(200)

    assert (job.record.phase, job.record.attempt, job.record.retries) == (Phase.RUNNING, 2, 0)


def test_a_queues_suspension_is_the_queues_to_end() -> None:
    """A wrapper that a queue has suspended is left to the queue: we resume nothing that we have not suspended."""
    job = running().at(100, suspend=True).at(105, gone=True)

    assert (job.record.phase, job.actions) == (Phase.SUSPENDED, ())
    assert job.record.attempts[0].message == "its queue suspended it"


def test_a_wrapper_that_is_deleted_from_outside_ends_the_job() -> None:
    """It is not made again; the job has failed."""
    job = running()
    assert job.world is not None
    job.at(100, delete=True).at(105, gone=True)
    assert job.world is None
    job.at(110)

    assert (job.record.phase, job.done, job.actions) == (Phase.FAILED, True, ())
    assert job.record.verdict is not None
    assert job.record.verdict.reason == "MissingComponent"


def test_deletion() -> None:
    """A deletion deletes the wrapper, waits until it is gone with its pods, and then the record goes."""
    job = running()
    job.record = dataclasses.replace(job.record, deletion=True)
    job.at(100)
    assert (job.record.phase, job.done) == (Phase.TERMINATING, False)

    job.at(105, gone=True).at(106)

    assert (job.actions, job.done, job.record.released) == ((Purge(),), True, False)


def test_a_job_begins_again_once_its_old_wrapper_is_gone() -> None:
    """Another run of a job deletes the wrapper of the run before and counts its attempts on."""
    job = running().at(130, pods="SS")
    job.record = job.record.restarted(owner="cli", now=START + 200)
    job.at(200)
    assert (job.record.phase, job.record.attempt) == (Phase.EMPTY, 1)

    job.at(205, gone=True).at(210).at(220, pods="RR")

    assert (job.record.phase, job.record.attempt, job.record.retries) == (Phase.RUNNING, 2, 0)


def test_what_cannot_be_created_fails_the_job() -> None:
    """Where trying again cannot help there is nothing to wait for; anything else is tried again."""
    job = Followed(errors=(CreateError(attempt=1, node=-1, reason="quota", fatal=False),))
    decision = job.turn(0)
    assert (decision.actions, decision.done, decision.wake_at) == ((CreateComponents(attempt=1),), False, START + 1)

    job.errors = (CreateError(attempt=1, node=-1, reason="no such kind", fatal=True),)
    decision = job.turn(1)

    assert (decision.actions, decision.done, job.record.phase) == ((), True, Phase.FAILED)
    assert job.record.verdict is not None
    assert job.record.verdict.message == "no such kind"


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(((10, {"pods": "RR"}), (100, {"pods": "R F(1)"}), (160, {}), (165, {"gone": True})), id="resetting"),
        pytest.param(((10, {"pods": "RR"}),), id="running"),
        pytest.param(((10, {"pods": "SS"}),), id="succeeded"),
    ],
)
def test_what_a_record_remembers_changes_nothing(story: tuple[tuple[float, dict[str, Any]], ...]) -> None:
    """A look at nothing but the record decides nothing: `explain` shows the job as it was seen last."""
    job = Followed().at(0)
    for t, told in story:
        job.at(t, **told)
    before = job.record

    after = reconcile(before, remembered(before, POLICY), POLICY, before.last_now)

    assert (after.record.phase, after.record.attempt, after.record.conditions) == (
        before.phase,
        before.attempt,
        before.conditions,
    )
    assert after.actions == ()


def test_a_queue_that_takes_a_suspension_back_is_told_again() -> None:
    """It did not know of the wrapper yet when a person suspended it; the person's wish still holds."""
    job = running()
    job.record = dataclasses.replace(job.record, suspend=True)
    job.at(20)
    assert (job.record.phase, job.actions) == (Phase.SUSPENDING, ())

    assert job.world is not None
    job.world.object["spec"]["suspend"] = False

    assert job.turn(21).actions == (SuspendComponents(suspend=True),)


def test_a_phase_that_is_not_known() -> None:
    """A controller of another version that says something else is told of, and not guessed about."""
    strange = wrapper() | {"status": {"phase": "Dreaming"}}

    with pytest.raises(BackendError, match="'Dreaming' is unknown"):
        seen.told(strange)


def test_times_and_messages_are_read() -> None:
    """Whole seconds and fractions alike."""
    condition = {
        "type": "Unhealthy",
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": "2023-11-14T22:13:20Z",
    }
    told = seen.told(wrapper() | {"status": {"phase": "Running", "conditions": [condition]}})

    found = told.find(ConditionType.UNHEALTHY)
    assert found is not None
    assert (found.value, found.at, told.message(ConditionType.UNHEALTHY)) == (True, START, "m")


def test_each_type_has_one_condition() -> None:
    """The first of them: a status with thousands would make a record that no ConfigMap holds."""
    many = [{"type": "Unhealthy", "status": "True", "reason": str(number)} for number in range(5000)]
    told = seen.told(
        wrapper() | {"status": {"phase": "Running", "conditions": [*many, {"type": "PodsReady", "status": "True"}]}}
    )

    assert sorted((found.type, found.reason) for found in told.conditions) == [
        (ConditionType.PODS_READY, ""),
        (ConditionType.UNHEALTHY, "0"),
    ]
