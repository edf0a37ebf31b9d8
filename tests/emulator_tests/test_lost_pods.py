"""Pods that others end: evictions, preemption, the OOM killer, and nodes that fall silent."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from tests.emulator.kubelet.environment import image_environment
from tests.emulator_tests.calls import pod
from tests.emulator_tests.kubelet_fixtures import cluster
from tests.emulator_tests.stage import condition, ended, phase, running, start, state
from tests.waiting import PATIENCE, eventually

__all__ = ["cluster"]

pytestmark = pytest.mark.live

SLEEP = ("sh", "-c", "trap 'exit 0' TERM; echo up; while true; do sleep 0.05; done")

HASTY = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]


@pytest.fixture
def one(calls):
    name = start(calls, pod("one", *SLEEP))
    running(calls, name, "up")
    return name


def node_of(calls, name):
    return calls.get("pods", name)[1]["spec"]["nodeName"]


def deleting(calls, name):
    return "deletionTimestamp" in calls.get("pods", name)[1]["metadata"]


def ready(server, node):
    body = server.request("GET", f"/api/v1/nodes/{node}")[1]
    return condition(body["status"], "Ready")["status"]


def test_a_pod_that_uses_too_much_memory_is_killed(server, calls, one):
    """137, OOMKilled."""
    server.oom_pod(name=one, namespace=calls.namespace)

    told = state(ended(calls, one))

    assert (told["exitCode"], told["reason"]) == (137, "OOMKilled")


def test_a_node_under_pressure_evicts(server, calls, one):
    """The pod fails with the reason Evicted and its message, and stays to be looked at."""
    server.evict_pod(name=one, namespace=calls.namespace)

    status = ended(calls, one)

    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert "low on resource" in status["message"]
    assert condition(status, "DisruptionTarget")["reason"] == "TerminationByKubelet"


def test_an_eviction_by_the_api_deletes(server, calls, one):
    """With the condition that says so, and with grace."""
    version = calls.version("pods")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": one}}

    assert server.request("POST", calls.path("pods", one, "eviction"), body)[0] == 201

    eventually(lambda: phase(calls, one) == "gone")
    last = calls.watch("pods", resourceVersion=version, fieldSelector=f"metadata.name={one}")[-1]["object"]["status"]
    assert condition(last, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"


def test_a_preempted_pod_is_deleted(server, calls, one):
    """PreemptionByScheduler."""
    version = calls.version("pods")

    server.preempt_pod(name=one, namespace=calls.namespace)

    eventually(lambda: phase(calls, one) == "gone")
    last = calls.watch("pods", resourceVersion=version, fieldSelector=f"metadata.name={one}")[-1]["object"]["status"]
    assert condition(last, "DisruptionTarget")["reason"] == "PreemptionByScheduler"


def test_the_pods_of_a_dead_node_are_deleted_and_stuck(server, calls):
    """Nobody confirms their end until the node is back, or they are deleted by force."""
    first, second = (start(calls, pod("one", *SLEEP, tolerations=HASTY, nodeName="node-a")) for _ in range(2))
    for name in (first, second):
        running(calls, name, "up")
    try:
        server.lose_node(name="node-a")

        eventually(lambda: ready(server, "node-a") == "Unknown")
        for name in (first, second):
            eventually(partial(deleting, calls, name))
        stuck = calls.get("pods", first)[1]["status"]
        assert (stuck["phase"], condition(stuck, "DisruptionTarget")["reason"]) == ("Running", "DeletionByTaintManager")
        assert condition(stuck, "Ready")["status"] == "False"

        calls.delete("pods", first, gracePeriodSeconds=0)
        assert phase(calls, first) == "gone"
    finally:
        server.restore_node(name="node-a")
    eventually(lambda: phase(calls, second) == "gone")
    assert ready(server, "node-a") == "True"


def test_a_pod_that_was_bound_meanwhile_starts_when_the_node_is_back(server, calls):
    """A node that is heard again is told everything."""
    server.lose_node(name="node-b")
    name = start(calls, pod("one", "true", nodeName="node-b"))
    assert phase(calls, name) == "Pending"

    server.restore_node(name="node-b")

    assert ended(calls, name)["phase"] == "Succeeded"


def test_a_tainted_node_sends_its_pods_away(server, calls):
    """NoExecute: who does not tolerate the taint is deleted, with grace, and who does stays."""
    tolerant = [{"key": "sick", "operator": "Exists", "effect": "NoExecute"}]
    stays = start(calls, pod("one", *SLEEP, nodeName="node-c", tolerations=tolerant))
    goes = start(calls, pod("one", *SLEEP, nodeName="node-c"))
    for name in (stays, goes):
        running(calls, name, "up")
    try:
        server.taint_node(name="node-c", key="sick", effect="NoExecute")
        eventually(lambda: phase(calls, goes) == "gone")
        assert phase(calls, stays) == "Running"
    finally:
        server.untaint_node(name="node-c", key="sick")
    calls.delete("pods", stays, gracePeriodSeconds=0)


def test_pods_that_were_tolerated_have_failed_when_the_node_is_back(server, calls):
    """A machine that went off and on again has nothing of them; their containers ended with 137."""
    name = start(calls, pod("one", *SLEEP, nodeName="node-b"))
    running(calls, name, "up")
    server.lose_node(name="node-b")
    assert phase(calls, name) == "Running"

    server.restore_node(name="node-b")

    assert state(ended(calls, name))["exitCode"] == 137


def test_a_node_that_nobody_reaches_may_go_on(server, calls, tmp_path):
    """Its processes work, its logs cannot be read, and it tells everything when it is back."""
    stop = tmp_path / "stop"
    name = start(
        calls, pod("one", "sh", "-c", f"echo up; while [ ! -e {stop} ]; do sleep 0.05; done; exit 6", nodeName="node-c")
    )
    running(calls, name, "up")
    try:
        server.lose_node(name="node-c", power=False)
        assert calls.get("pods", name, "log")[0] == 500
        stop.touch()
        eventually(lambda: ready(server, "node-c") == "Unknown")
        assert phase(calls, name) == "Running"
    finally:
        server.restore_node(name="node-c")
    assert state(ended(calls, name))["exitCode"] == 6


LISTENS = """
import os, pathlib, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path(sys.argv[1]).write_text(str(server.getsockname()[1]))
print("up", flush=True)
kept = server.accept()
kept[0].sendall(b"!")
time.sleep(600)
"""


def test_a_node_whose_power_fails_closes_no_connection(server, calls, tmp_path):
    """Its peers hear nothing, not even the end of a connection, until it starts again; then its pods have ended."""
    port = tmp_path / "port"
    name = start(calls, pod("one", "python", "-c", LISTENS, str(port), nodeName="node-a"))
    running(calls, name, "up")
    with socket.create_connection(("127.0.0.1", int(port.read_text()))) as peer:
        peer.settimeout(30.0 * PATIENCE)
        # A connection that nobody had accepted would be reset.
        assert peer.recv(1) == b"!"
        peer.settimeout(0.5)
        server.lose_node(name="node-a", silent=True)
        try:
            with pytest.raises(TimeoutError):
                peer.recv(1)
        finally:
            server.restore_node(name="node-a")
        peer.settimeout(30.0 * PATIENCE)
        assert peer.recv(1) == b""
    assert state(ended(calls, name))["exitCode"] == 137


def test_pods_without_a_route_to_the_api_server(tmp_path):
    """They are told an address, as always, and nothing answers there."""
    url = image_environment("http://127.0.0.1:6443", {}, tmp_path, routing=False)["RALLYPOINT_API_SERVER"]
    host, _, port = url.removeprefix("http://").partition(":")

    with pytest.raises(OSError), socket.create_connection((host, int(port)), timeout=5.0):
        pass


def test_the_pods_of_a_node_that_is_no_more_are_collected(server, calls):
    """They are removed after a while, without anybody's confirmation."""
    server.add_node(name="node-z")
    name = start(calls, pod("one", *SLEEP, nodeName="node-z"))
    running(calls, name, "up")
    server.lose_node(name="node-z")

    server.request("DELETE", "/api/v1/nodes/node-z")

    assert eventually(lambda: phase(calls, name) == "gone")
