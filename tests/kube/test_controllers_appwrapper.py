"""The AppWrapper controller of the emulator behaves as the reference does: its vectors, as coded there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.emulator.controllers.appwrapper_rules import Creation
from tests.emulator.controllers.podsets import PodSetError, expected_pods, pod_sets
from tests.emulator.controllers.settings import PREFIX, Settings
from tests.kube.wrappers import Wrapped, pytorchjob, wrapper

GPU = {"host": frozenset({"nvidia.com/gpu"})}


@dataclass(frozen=True, kw_only=True)
class At:
    """What happens at a second, and what must be so after the controller has looked."""

    t: float
    phase: str
    n: int
    so: str
    after: float | None
    did: str | None
    tell: dict[str, Any]


def at(t: float, phase: str, n: int = 0, so: str = "", after: float | None = None, did: str | None = None, **tell: Any) -> At:
    return At(t=t, phase=phase, n=n, so=so, after=after, did=did, tell=tell)


START = at(0, "Running", so="QuotaReserved ResourcesDeployed@0 !PodsReady !Unhealthy", after=5, did="create", suspend=False)
READY = at(10, "Running", so="PodsReady=SufficientPodsReady@10", after=60, pods="RR")
NO_GRACE = {"failureGracePeriodDuration": "0s"}

VECTORS = [
    pytest.param(
        wrapper(),
        (
            at(2, "Running", pods="PP", after=5),
            READY,
            at(70, "Running", so="PodsReady", pods="RS"),
            at(130, "Succeeded", so="!QuotaReserved=Succeeded ResourcesDeployed", pods="SS"),
        ),
        id="1 happy path",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Running", so="Unhealthy=FoundFailedPods@100", after=60, pods="R F(1)"),
            at(159, "Running", so="!Unhealthy=FoundNoFailedPods", pods="RR"),
            at(160, "Running"),
        ),
        id="2 recovered inside the grace",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Running", pods="R F(1)"),
            at(159, "Running", after=1),
            at(160, "Resetting", 1, so="DeletingResources=DeletionInitiated !PodsReady", after=5, did="delete"),
            at(165, "Resetting", 1, so="!ResourcesDeployed QuotaReserved", after=25, gone=True),
            at(189, "Resetting", 1, after=1),
            at(190, "Running", 1, so="ResourcesDeployed@190 !Unhealthy QuotaReserved@0", did="create"),
        ),
        id="3 one retry: the pause counts from the detection",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Running", pods="R F(1)"),
            at(160, "Resetting", 1),
            at(300, "Running", 1, so="ResourcesDeployed@300", gone=True),
        ),
        id="4 a slow deletion swallows the pause",
    ),
    pytest.param(
        wrapper(pytorchjob(1), retryLimit="2", retryPausePeriodDuration="5s", **NO_GRACE),
        (
            at(10, "Resetting", 1, pods="F(1)"),
            at(12, "Resetting", 1, after=3, gone=True),
            at(15, "Running", 1),
            at(20, "Resetting", 2, pods="F(1)"),
            at(26, "Running", 2, gone=True),
            at(30, "Failed", 2, so="QuotaReserved", pods="F(1)"),
            at(40, "Failed", 2, so="!ResourcesDeployed=Failed !QuotaReserved=Failed", gone=True),
        ),
        id="5 a budget of two",
    ),
    pytest.param(
        wrapper(pytorchjob(4)),
        (
            at(5, "Running", pods="PPR"),
            at(59, "Running", after=1),
            at(60, "Resetting", 1, so="Unhealthy=InsufficientPodsReady@60"),
        ),
        id="7 admission",
    ),
    pytest.param(
        wrapper(pytorchjob(4)),
        (at(5, "Running", pods="PPRR"), at(60, "Running"), at(299, "Running", after=1), at(300, "Resetting", 1)),
        id="8 warm-up",
    ),
    pytest.param(
        wrapper(),
        (at(10, "Running", pods="R P*"), at(60, "Running"), at(300, "Resetting", 1)),
        id="11 pending and being deleted",
    ),
    pytest.param(wrapper(), (at(10, "Running", pods="RU"), at(60, "Resetting", 1)), id="11 unknown counts nowhere"),
    pytest.param(
        wrapper(warmupGracePeriodDuration="10s", admissionGracePeriodDuration="60s"),
        (at(5, "Running", pods="P"), at(30, "Running"), at(31, "Resetting", 1, pods="PP")),
        id="12 a warm-up shorter than admission",
    ),
    pytest.param(
        wrapper(),
        (at(100, "Resetting", 1, so="Unhealthy=FailedComponent@100", pods="R F(1)", component="failed"),),
        id="15 a failed component has no grace",
    ),
    pytest.param(
        wrapper(terminalExitCodes="3"),
        (at(100, "Failed", pods="R F(3)", component="failed"),),
        id="15 a failed component with a terminal code",
    ),
    pytest.param(
        wrapper(),
        (READY, at(100, "Failed", so="Unhealthy=MissingComponent", component="missing")),
        id="17 deleted by another client",
    ),
    pytest.param(
        wrapper(), (at(10, "Failed", so="Unhealthy=MissingComponent", component="deleting", pods="SS"),), id="17 before success"
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Resetting", 0, so="Unhealthy=AutopilotNoExecute@100", pods="R! R", flagged=GPU),
            at(105, "Resetting", 0, gone=True, flagged={}),
            at(189, "Resetting", 0),
            at(190, "Running", 0),
        ),
        id="19 an evacuation is free",
    ),
    pytest.param(wrapper(), (READY, at(100, "Running", pods="RR", flagged=GPU)), id="19 only who uses what is flagged"),
    pytest.param(wrapper(retryLimit="0"), (READY, at(100, "Failed", pods="R! R", flagged=GPU)), id="19 without a budget"),
    pytest.param(
        wrapper(),
        (READY, at(100, "Running", pods="R! F(1)", flagged=GPU), at(160, "Resetting", 1)),
        id="19 a failed pod goes first",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Suspending", so="QuotaReserved ResourcesDeployed", did="delete", suspend=True),
            at(105, "Suspended", so="!QuotaReserved !ResourcesDeployed !PodsReady", gone=True),
            at(200, "Running", so="ResourcesDeployed@200", suspend=False),
        ),
        id="20 preemption costs nothing",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(100, "Suspending", suspend=True),
            at(102, "Suspending", suspend=False),
            at(105, "Running", so="ResourcesDeployed@105", gone=True),
        ),
        id="20 a suspension is finished before it is taken back",
    ),
    pytest.param(
        wrapper(pytorchjob(1), retryLimit="0", deletionOnFailureGracePeriodDuration="1h", **NO_GRACE),
        (
            at(10, "Failed", so="!DeletingResources=DeletionPaused@10 QuotaReserved", after=3600, pods="F(1)"),
            at(3609, "Failed", after=1),
            at(3610, "Failed", so="DeletingResources", did="delete"),
            at(3615, "Failed", so="!DeletingResources=DeletionPaused@3615 QuotaReserved", gone=True),
            at(7215, "Failed", so="!QuotaReserved !ResourcesDeployed"),
        ),
        id="22 the debugging delay, taken twice",
    ),
    pytest.param(
        wrapper(pytorchjob(1), retryLimit="0", deletionOnFailureGracePeriodDuration="1h", **NO_GRACE),
        (
            at(10, "Failed", pods="F(1)"),
            at(100, "Failed", did="delete", suspend=True),
            at(105, "Failed", so="!QuotaReserved !ResourcesDeployed", gone=True),
        ),
        id="22 a suspension ends the delay",
    ),
    pytest.param(
        wrapper(pytorchjob(1), forcefulDeletionGracePeriodDuration="30s", **NO_GRACE),
        (
            at(10, "Resetting", 1, did="delete", pods="F(1)"),
            at(40, "Resetting", 1, did="delete"),
            at(41, "Resetting", 1, did="kill"),
            at(46, "Resetting", 1, did="delete now", pods=""),
            at(51, "Resetting", 1, so="!ResourcesDeployed", gone=True),
        ),
        id="23 forced: pods first, then components",
    ),
    pytest.param(
        wrapper(successTTLDuration="10m"),
        (
            at(130, "Succeeded", after=470, pods="SS"),
            at(600, "Succeeded", so="ResourcesDeployed", did="delete"),
            at(605, "Succeeded", so="!ResourcesDeployed", gone=True),
        ),
        id="25 the TTL counts from the deployment",
    ),
    pytest.param(
        wrapper(),
        (
            READY,
            at(50, "Terminating", after=5, did="delete", delete=True),
            at(55, "Terminating", so="!ResourcesDeployed !QuotaReserved", gone=True),
        ),
        id="31 deletion",
    ),
]


@pytest.mark.parametrize(("wrapped", "story"), VECTORS)
def test_vectors(wrapped: dict[str, Any], story: tuple[At, ...]) -> None:
    """At each second of the reference's vectors the wrapper is in the phase, with the conditions and waits, that it says."""
    watched = Wrapped(wrapped)
    for line in (START, *story):
        watched.tell(**line.tell)
        watched.look(line.t)

        assert (watched.phase, watched.retries) == (line.phase, line.n), (line, watched.object["status"])
        assert [said for said in line.so.split() if not watched.so(said)] == [], (line, watched.object["status"])
        assert line.after is None or watched.after == pytest.approx(line.after, abs=0.01), (line, watched.after)
        assert line.did is None or watched.did == [line.did], line


@pytest.mark.parametrize(
    ("codes", "pods", "phase"),
    [
        pytest.param({"terminalExitCodes": "3,10"}, "R F(3)", "Failed", id="a terminal"),
        pytest.param({"terminalExitCodes": "3, 10"}, "R F(10)", "Resetting", id="b a blank hides a code"),
        pytest.param({"retryableExitCodes": "137,143"}, "R F(137)", "Resetting", id="c retryable"),
        pytest.param({"retryableExitCodes": "137,143"}, "R F(1)", "Failed", id="d not retryable"),
        pytest.param({"retryableExitCodes": "137", "terminalExitCodes": "137"}, "R F(137)", "Failed", id="e in both"),
        pytest.param({"retryableExitCodes": "137"}, "R F()", "Resetting", id="f without a code"),
        pytest.param({"retryableExitCodes": "137"}, "F(137) F(1)", "Failed", id="g two codes"),
        pytest.param({"terminalExitCodes": "0,3"}, "R F(0,7)", "Resetting", id="h nought is skipped"),
    ],
)
def test_exit_codes_decide_at_the_end_of_the_grace(codes: dict[str, str], pods: str, phase: str) -> None:
    """A terminal code fails the wrapper, after the failure grace like any other."""
    watched = Wrapped(wrapper(**codes))
    watched.tell(suspend=False)
    watched.look(0)
    watched.tell(pods=pods)
    watched.look(100)
    assert watched.phase == "Running"

    watched.look(160)

    assert watched.phase == phase


@pytest.mark.parametrize(
    ("creation", "t", "phase", "retries"),
    [
        pytest.param(Creation(error="no such kind", fatal=True), 0, "Failed", 0, id="fatal"),
        pytest.param(Creation(error="quota"), 59, "Resuming", 0, id="tried again"),
        pytest.param(Creation(error="quota"), 60, "Resetting", 1, id="for the admission grace"),
    ],
)
def test_what_cannot_be_created(creation: Creation, t: float, phase: str, retries: int) -> None:
    """A fatal error fails the wrapper at once, any other is tried again for the admission grace and costs a retry then."""
    watched = Wrapped(wrapper())
    watched.tell(suspend=False, creation=creation)
    watched.look(0)
    watched.look(t)

    assert (watched.phase, watched.retries) == (phase, retries)


def test_another_manager() -> None:
    """A wrapper that somebody else manages is never touched."""
    theirs = wrapper()
    theirs["spec"] |= {"suspend": False, "managedBy": "kueue.x-k8s.io/multikueue"}
    watched = Wrapped(theirs)

    watched.look(0)

    assert (watched.phase, watched.did) == ("", [])


@pytest.mark.parametrize(
    ("key", "text", "field", "seconds"),
    [
        pytest.param("failureGracePeriodDuration", "-10m", "failure", 0, id="29 negative"),
        pytest.param("failureGracePeriodDuration", "48h", "failure", 86400, id="29 above the ceiling"),
        pytest.param("failureGracePeriodDuration", "222badTime", "failure", 60, id="29 malformed"),
        pytest.param("failureGracePeriodDuration", "60", "failure", 60, id="29 no unit"),
        pytest.param("warmupGracePeriodDuration", "1d", "warmup", 300, id="29 no days"),
        pytest.param("warmupGracePeriodDuration", "1h30m", "warmup", 5400, id="29 compound"),
        pytest.param("warmupGracePeriodDuration", "1.5h", "warmup", 5400, id="29 decimal"),
        pytest.param("warmupGracePeriodDuration", "300ms", "warmup", 0.3, id="29 small"),
        pytest.param("retryPausePeriodDuration", "0", "retry_pause", 0, id="29 nought"),
        pytest.param("deletionOnFailureGracePeriodDuration", "1d", "deletion_on_failure", 0, id="29 malformed delay"),
        pytest.param("successTTLDuration", "0s", "success_ttl", 604800, id="25 no TTL"),
        pytest.param("successTTLDuration", "169h", "success_ttl", 604800, id="25 too long a TTL"),
        pytest.param("successTTLDuration", "10m", "success_ttl", 600, id="25 a TTL"),
    ],
)
def test_annotations(key: str, text: str, field: str, seconds: float) -> None:
    """Durations are Go's; what is malformed is silently the default, what is out of bounds is clipped."""
    assert getattr(Settings.read({PREFIX + key: text}), field) == pytest.approx(seconds)


def test_pace() -> None:
    """At a hundred times the pace a grace of a minute lasts 0.6 s; limits, and the time to start, are what they were."""
    faster = Settings.read({PREFIX + "retryLimit": "101"}).at_speed(100.0)

    assert (faster.failure, faster.running_poll) == pytest.approx((0.6, 0.6))
    assert (faster.admission, faster.warmup) == (60.0, 300.0)
    assert faster.retry_limit == 101


_BATCH = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 4, "completions": 2}}
_JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "spec": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 3, "completions": 9}}}]},
}


@pytest.mark.parametrize(
    ("template", "count"),
    [
        pytest.param(pytorchjob(4), 4, id="33 PyTorchJob"),
        pytest.param(_BATCH, 2, id="33 batch Job"),
        pytest.param(_JOBSET, 6, id="33 JobSet"),
        pytest.param({"apiVersion": "v1", "kind": "Pod"}, 1, id="33 Pod"),
        pytest.param({"apiVersion": "v1", "kind": "Service"}, 0, id="33 Service"),
    ],
)
def test_expected_pods(template: dict[str, Any], count: int) -> None:
    """The pods of a component are counted from what its kind says."""
    assert expected_pods([{"podSets": pod_sets({"template": template})}]) == count


def test_declared_pods_must_be_those_that_are_there() -> None:
    """Pod sets that are declared otherwise than the template has them are refused."""
    declared = {"template": _BATCH, "podSets": [{"path": "template.spec.template", "replicas": 7}]}

    with pytest.raises(PodSetError, match="7"):
        pod_sets(declared)
