"""Vectors 32 and 33 of AppWrapper's reference, which are about what a cluster holds; the others are the core's."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.watching.views import HostView
from rallypoint.backends.kubernetes.wrapped.blueprint import draw
from rallypoint.backends.kubernetes.wrapped.podsets import PodSetError, pod_sets
from tests.kube.pods import host_of
from tests.kube.wrappers import pytorchjob

BATCH = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 4, "completions": 2, "template": {"spec": {}}}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "spec": {
        "replicatedJobs": [
            {"replicas": 2, "template": {"spec": {"parallelism": 3, "completions": 9, "template": {"spec": {}}}}},
        ]
    },
}
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {}}
SERVICE = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": []}}


def wrapper(*components: dict[str, Any]) -> dict[str, Any]:
    """Return an AppWrapper of these components."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "train"},
        "spec": {"components": list(components)},
    }


def machine(labels: dict[str, str] | None = None, taints: list[dict[str, str]] | None = None) -> HostView:
    """Return what is kept of a machine that is ready."""
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return host_of({"metadata": {"name": "gpu-1", "labels": labels or {}}, "spec": {"taints": taints or []}, "status": status})


@pytest.mark.parametrize(
    ("health", "bad"),
    [
        pytest.param("EVICT", "autopilot.ibm.com/gpuhealth=EVICT", id="32 EVICT"),
        pytest.param("WARN", "", id="32 WARN"),
        pytest.param("PASS", "", id="32 PASS"),
        pytest.param("ERR", "", id="32 ERR keeps new pods off, and moves none"),
    ],
)
def test_whom_a_machine_drives_away(health: str, bad: str) -> None:
    """Only the label that says so moves pods; it is taken back with the label."""
    assert machine({"autopilot.ibm.com/gpuhealth": health}).bad == bad
    assert machine().bad == ""


@pytest.mark.parametrize(
    "key", [pytest.param(f"node.kubernetes.io/{word}", id=f"32 {word}") for word in ("unreachable", "not-ready")]
)
def test_a_taint_drives_nobody_away_by_itself(key: str) -> None:
    """It keeps new pods off; the running ones are the kubelet's and the lease's to judge."""
    tainted = machine(taints=[{"key": key, "effect": "NoSchedule"}])
    assert (tainted.ready, tainted.bad, tainted.taints) == (machine().ready, "", (key,))


@pytest.mark.parametrize(
    ("template", "count"),
    [
        pytest.param(pytorchjob(4), 4, id="33 a master and three workers"),
        pytest.param(BATCH, 2, id="33 batch Job"),
        pytest.param(JOBSET, 6, id="33 JobSet"),
        pytest.param(POD, 1, id="33 Pod"),
    ],
)
def test_how_many_pods_are_expected(template: dict[str, Any], count: int) -> None:
    """They are counted from what the component's kind says, and may be declared alike."""
    [*found] = pod_sets(wrapper({"template": template}))
    declared = [{"path": pods.path.removeprefix("spec.components[0]."), "replicas": pods.replicas} for pods in found]

    assert sum(pods.replicas for pods in found) == count
    assert list(pod_sets(wrapper({"template": template, "podSets": declared}))) == found


def test_33_a_worker_without_a_number_is_one() -> None:
    """As the training operator has it."""
    job = pytorchjob(4)
    del job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]

    assert sum(pods.replicas for pods in pod_sets(wrapper({"template": job}))) == 2


@pytest.mark.parametrize(
    ("components", "said"),
    [
        pytest.param(
            [{"template": BATCH, "podSets": [{"path": "template.spec.template", "replicas": 7}]}],
            r"declares 7 at template.spec.template, but the pod templates of the component give 2",
            id="33 declared otherwise",
        ),
        pytest.param([{"template": POD}] * 9, "9 pod sets", id="33 nine pod sets"),
    ],
)
def test_what_cannot_be_counted_is_refused(components: list[dict[str, Any]], said: str) -> None:
    """In words that name the place."""
    with pytest.raises(PodSetError, match=said):
        list(pod_sets(wrapper(*components)))


def test_33_only_a_service() -> None:
    """A wrapper without a pod is no job."""
    with pytest.raises(SubmitError, match="contains no pod template"):
        draw(wrapper({"template": SERVICE}), namespace="team")
