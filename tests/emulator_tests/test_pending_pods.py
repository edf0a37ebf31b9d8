"""Pods that do not start: what they wait for, in the words of the real cluster."""

from __future__ import annotations

import pytest

from tests.emulator_tests.calls import pod
from tests.emulator_tests.kubelet_fixtures import cluster
from tests.emulator_tests.stage import condition, ended, running, start, state, waiting_for
from tests.waiting import eventually

__all__ = ["cluster"]

pytestmark = pytest.mark.live

LOST_KEY = {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "k"}}}]}


@pytest.mark.parametrize(
    ("container", "reasons"),
    [
        pytest.param({"image": "missing:1"}, ("ErrImagePull", "ImagePullBackOff"), id="no image"),
        pytest.param(
            {"image": "missing:1", "imagePullPolicy": "Never"}, ("ErrImageNeverPull",), id="no image, and none wanted"
        ),
        pytest.param({"image": "Not A Name"}, ("InvalidImageName",), id="no name of an image"),
        pytest.param(LOST_KEY, ("CreateContainerConfigError",), id="a secret that is not there"),
        pytest.param(
            {"image": "alpine:3.10", "securityContext": {"runAsNonRoot": True}},
            ("CreateContainerConfigError",),
            id="an image of root where root is not allowed",
        ),
    ],
)
def test_a_container_that_cannot_be_made_waits(calls, container, reasons):
    """With its reason and a message; the pod is pending."""
    name = start(calls, pod("one", container=container))

    told = waiting_for(calls, name, *reasons)

    assert told["message"]
    assert calls.get("pods", name)[1]["status"]["phase"] == "Pending"
    calls.delete("pods", name)
    eventually(lambda: calls.get("pods", name)[0] == 404)


def test_what_was_missing_may_come(server, calls):
    """A pod goes on by itself when its image, or its secret, is there."""
    server.fail_image(pattern="late:*")
    name = start(calls, pod("one", "true", container={**LOST_KEY, "image": "late:1"}))
    waiting_for(calls, name, "ErrImagePull", "ImagePullBackOff")

    server.mend_image(pattern="late:*")
    waiting_for(calls, name, "CreateContainerConfigError")
    calls.create("secrets", {"metadata": {"name": "nowhere"}, "stringData": {"k": "v"}})

    assert ended(calls, name)["phase"] == "Succeeded"


def test_a_volume_that_is_not_there_is_told_by_an_event(calls):
    """The container is being created, which says nothing; the event says why."""
    name = start(calls, pod("one", "true", volumes=[{"name": "v", "secret": {"secretName": "later"}}]))
    query = {"fieldSelector": f"involvedObject.name={name},reason=FailedMount"}

    eventually(lambda: calls.listed("events", **query)["items"])
    assert 'secret "later" not found' in calls.listed("events", **query)["items"][0]["message"]
    found = calls.get("pods", name)[1]["status"]
    assert (state(found).get("reason"), found.get("podIP")) == ("ContainerCreating", None)

    calls.create("secrets", {"metadata": {"name": "later"}})
    assert ended(calls, name)["phase"] == "Succeeded"


def test_a_program_that_is_not_there_fails_to_start(calls):
    """128, StartError, and its name."""
    told = state(ended(calls, start(calls, pod("one", "no-such-program"))))

    assert (told["exitCode"], told["reason"]) == (128, "StartError")
    assert "no-such-program" in told["message"]


def test_a_container_that_fails_again_and_again_backs_off(calls):
    """CrashLoopBackOff between its restarts."""
    name = start(calls, pod("one", "sh", "-c", "exit 1", restartPolicy="Always"))

    told = waiting_for(calls, name, "CrashLoopBackOff")

    assert "restarting failed container" in told["message"]
    assert calls.get("pods", name)[1]["status"]["phase"] == "Running"
    calls.delete("pods", name)


def test_a_gated_pod_waits_for_its_gates(calls):
    """SchedulingGated, until the last gate is taken away."""
    name = start(calls, pod("one", "true", schedulingGates=[{"name": "x.io/gate"}]))
    eventually(lambda: condition(calls.get("pods", name)[1]["status"], "PodScheduled").get("reason") == "SchedulingGated")

    calls.patch("pods", name, {"spec": {"schedulingGates": None}})

    assert ended(calls, name)["phase"] == "Succeeded"


def test_a_pod_waits_for_room(calls):
    """Unschedulable, with an event, until somebody leaves."""
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    sleep = ("sh", "-c", "while true; do sleep 0.05; done")
    holders = [start(calls, pod("holder", *sleep, container=gpus)) for _ in range(3)]
    for holder in holders:
        running(calls, holder)
    name = start(calls, pod("one", "true", container=gpus))

    def told():
        return condition(calls.get("pods", name)[1]["status"], "PodScheduled")

    eventually(lambda: told().get("reason") == "Unschedulable")
    assert "3 Insufficient nvidia.com/gpu" in told()["message"]
    assert calls.names("events", fieldSelector=f"involvedObject.name={name},reason=FailedScheduling")

    calls.delete("pods", holders[0], gracePeriodSeconds=1)
    assert ended(calls, name)["phase"] == "Succeeded"
    for holder in holders[1:]:
        calls.delete("pods", holder, gracePeriodSeconds=0)


def test_a_cordoned_node_takes_nobody(server, calls):
    """The others do; without any, the pod waits."""
    for node in ("node-a", "node-b", "node-c"):
        server.cordon(name=node)
    name = start(calls, pod("one", "true"))
    eventually(lambda: condition(calls.get("pods", name)[1]["status"], "PodScheduled").get("reason") == "Unschedulable")
    assert "3 node(s) were unschedulable" in condition(calls.get("pods", name)[1]["status"], "PodScheduled")["message"]

    for node in ("node-a", "node-b", "node-c"):
        server.uncordon(name=node)
    assert ended(calls, name)["phase"] == "Succeeded"
