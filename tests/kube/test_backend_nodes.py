"""What is seen of a node, by what is told of its pod."""

from __future__ import annotations

import pytest

from rallypoint.backends.kubernetes.watching.judging import PATIENCE, Around, cannot_start, mounts, node_seen, taken_by_queue
from rallypoint.backends.kubernetes.watching.views import HostView, host_view, pod_view
from rallypoint.supervision.observation import NodeState
from rallypoint.wire.incident import FaultKind
from tests.kube.pods import condition, ended, pod, running, waiting


def seen(found, **around):
    view = pod_view(found)
    assert view is not None
    return node_seen(view, Around(**around))


def host(*, ready: bool | None = True, bad: str = "") -> HostView:
    return HostView(name="host-a", uid="u", version="1", ready=ready, bad=bad)


DISRUPTED = "DisruptionTarget"


@pytest.mark.parametrize(
    ("found", "state", "kind", "reason"),
    [
        pytest.param(pod(), NodeState.RUNNING, None, "", id="runs"),
        pytest.param(pod(phase="Pending", containers=()), NodeState.STARTING, None, "", id="just made"),
        pytest.param(
            pod(phase="Succeeded", containers=(ended(0, "Completed"),)), NodeState.SUCCEEDED, None, "", id="ended well"
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(3),)), NodeState.FAILED, None, "", id="ended badly: the code says why"
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(137, "OOMKilled"),)),
            NodeState.FAILED,
            FaultKind.OOM,
            "OOMKilled",
            id="out of memory",
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(137),), reason="Evicted", message="low on memory"),
            NodeState.FAILED,
            FaultKind.EVICTED,
            "Evicted: low on memory",
            id="evicted",
        ),
        pytest.param(
            pod(phase="Failed", containers=(), reason="Evicted", message="low on disk"),
            NodeState.LOST,
            FaultKind.EVICTED,
            "Evicted: low on disk",
            id="evicted before it ran",
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(143),), conditions=(condition(DISRUPTED, "PreemptionByScheduler", "room"),)),
            NodeState.FAILED,
            FaultKind.PREEMPTED,
            "PreemptionByScheduler: room",
            id="preempted",
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(143),), conditions=(condition("TerminationTarget", "Evicted", "quota"),)),
            NodeState.FAILED,
            FaultKind.PREEMPTED,
            "TerminationTarget: Evicted: quota",
            id="preempted by Kueue",
        ),
        pytest.param(
            pod(phase="Failed", containers=(ended(143),), conditions=(condition(DISRUPTED, "EvictionByEvictionAPI"),)),
            NodeState.FAILED,
            FaultKind.FLAGGED,
            "EvictionByEvictionAPI",
            id="its host is drained",
        ),
        pytest.param(
            pod(phase="Failed", containers=(), conditions=(condition(DISRUPTED, "DeletionByPodGC"),)),
            NodeState.LOST,
            FaultKind.NODE_LOST,
            "DeletionByPodGC",
            id="its host does not exist any more",
        ),
        pytest.param(
            pod(phase="Failed", containers=(), reason="OutOfcpu"), NodeState.LOST, FaultKind.EVICTED, "OutOfcpu", id="no room"
        ),
        pytest.param(
            pod(containers=(ended(5), running("sidecar"))), NodeState.FAILED, None, "", id="ended, and its sidecar lives"
        ),
        pytest.param(pod(phase="Unknown"), NodeState.RUNNING, None, "", id="unknown for a moment"),
        pytest.param(pod(deleting=True), NodeState.ENDING, None, "", id="asked to go"),
    ],
)
def test_what_is_seen_of_a_pod(found, state, kind, reason):
    """State, kind of end and reason, in the words of the supervisor."""
    node = seen(found)

    assert (node.state, node.kind, node.reason) == (state, kind, reason)


@pytest.mark.parametrize(
    ("found", "gated", "unschedulable"),
    [
        pytest.param(
            pod(phase="Pending", host="", containers=(), spec={"schedulingGates": [{"name": "q"}]}), True, False, id="q"
        ),
        pytest.param(
            pod(
                phase="Pending",
                host="",
                containers=(),
                conditions=(condition("PodScheduled", "Unschedulable", "0/3 nodes", status="False"),),
            ),
            False,
            True,
            id="no room",
        ),
    ],
)
def test_waiting_for_room_is_no_fault(found, gated, unschedulable):
    """Quota and the scheduler are told apart, and neither becomes an end however long it lasts."""
    node = seen(found, stuck=3600.0)

    assert (node.state, node.gated, node.unschedulable) == (NodeState.STARTING, gated, unschedulable)


@pytest.mark.parametrize(
    ("reason", "stuck", "state"),
    [
        pytest.param("ErrImagePull", 0.0, NodeState.STARTING, id="a registry may stumble"),
        pytest.param("ImagePullBackOff", PATIENCE, NodeState.FAILED, id="it did not come back"),
        pytest.param("CreateContainerConfigError", PATIENCE, NodeState.FAILED, id="a Secret that is not there"),
        pytest.param("InvalidImageName", 0.0, NodeState.FAILED, id="a name that can be no image's"),
        pytest.param("ContainerCreating", 3600.0, NodeState.STARTING, id="volumes take their time"),
    ],
)
def test_what_keeps_a_pod_from_starting(reason, stuck, state):
    """Bad pending is an end with its reason, within a minute; what may go away by itself is waited for."""
    node = seen(pod(phase="Pending", containers=(waiting(reason, "no such image"),)), stuck=stuck)

    assert node.state is state
    if state is NodeState.FAILED:
        assert (node.kind, node.present) == (FaultKind.START_FAILED, True)
        assert node.reason == f"container trainer cannot start: {reason}: no such image"


def test_volumes_that_do_not_come_are_told_by_an_event():
    """The pod waits where its machine makes it; what the event says is the reason."""
    found = pod(phase="Pending", containers=(waiting("ContainerCreating"),))
    view = pod_view(found)
    assert view is not None
    assert mounts(view)
    assert not cannot_start(view)

    node = seen(found, stuck=PATIENCE, trouble='FailedMount: secret "data" not found')

    assert (node.state, node.kind, node.reason) == (
        NodeState.FAILED,
        FaultKind.START_FAILED,
        'FailedMount: secret "data" not found',
    )


@pytest.mark.parametrize(
    ("deleting", "unreachable", "state"),
    [
        pytest.param(False, 3600.0, NodeState.UNKNOWN, id="nobody has given it up"),
        pytest.param(True, 599.0, NodeState.UNKNOWN, id="its workers may still run"),
        pytest.param(True, 600.0, NodeState.LOST, id="they have stopped by themselves"),
    ],
)
def test_a_host_that_nobody_hears_of(deleting, unreachable, state):
    """Its node is counted nowhere until its workers must have stopped for want of contact; only then is it lost."""
    node = seen(pod(deleting=deleting), host=host(ready=None), unreachable=unreachable, fence=600.0)

    assert (node.state, node.present) == (state, True)


@pytest.mark.parametrize(
    ("found", "around", "present"),
    [
        pytest.param(pod(phase="Failed", containers=(ended(1),)), {}, False, id="ended, kept for its log"),
        pytest.param(pod(phase="Failed", containers=(ended(1),)), {"kept": False}, True, id="ended, to be cleared away"),
        pytest.param(pod(phase="Failed", containers=(ended(1),)), {"gone": True}, False, id="gone"),
        pytest.param(pod(deleting=True), {"gone": True}, False, id="gone without a word"),
        pytest.param(pod(containers=(ended(0), running("sidecar"))), {}, True, id="its sidecar lives"),
    ],
)
def test_what_holds_resources(found, around, present):
    """An ended pod holds nothing but its log; while a job is cleared away it must go, too."""
    assert seen(found, **around).present is present


@pytest.mark.parametrize("gone", [True, False])
def test_a_pod_that_was_deleted_from_outside_ends_by_a_signal_that_is_not_its_fault(gone):
    """The exit code is that of the container, and the kind is a deletion, also while the pod still exists."""
    node = seen(pod(phase="Failed", containers=(ended(143),), deleting=True), gone=gone)

    assert (node.state, node.exit_code, node.kind) == (NodeState.FAILED, 143, FaultKind.DELETED)


def test_a_sidecar_outlives_no_finished_job():
    """Once the job is over whoever is beside a trainer that has ended is a node that has not."""
    node = seen(pod(containers=(ended(0), running("sidecar"))), finished=True)

    assert (node.state, node.ended) == (NodeState.ENDING, False)


def test_an_accelerator_that_was_flagged_is_left():
    """Pods that use one are told of it, others are not."""
    device = {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "4"}}}]}
    flagged = host_view({"metadata": {"name": "host-a", "labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}})

    assert seen(pod(spec=device), host=flagged).flagged == "host-a has autopilot.ibm.com/gpuhealth=EVICT"
    assert not seen(pod(), host=flagged).flagged
    assert not seen(pod(spec=device), host=host()).flagged


def test_a_failed_init_container_is_a_failed_start():
    """It never ran; the reason names the container."""
    found = pod(phase="Failed", containers=())
    found["status"]["initContainerStatuses"] = [ended(1, message="no route", name="fetch")]
    node = seen(found)

    assert (node.state, node.kind, node.reason) == (
        NodeState.FAILED,
        FaultKind.START_FAILED,
        "init container fetch no route",
    )


def test_a_queue_takes_quota_away_by_a_condition():
    """Kueue says so on each pod before it ends it."""
    view = pod_view(pod(conditions=(condition("TerminationTarget", "Preempted"),)))

    assert view is not None
    assert taken_by_queue(view)


def test_pods_of_others_are_none_of_ours():
    """Whatever lacks our labels is not kept."""
    found = pod()
    found["metadata"]["labels"] = {"app": "web"}

    assert pod_view(found) is None
