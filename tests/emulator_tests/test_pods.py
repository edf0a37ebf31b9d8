"""Pods run: their commands, what they are given, and how they end."""

from __future__ import annotations

import pytest

from tests.emulator_tests.calls import pod
from tests.emulator_tests.kubelet_fixtures import cluster
from tests.emulator_tests.stage import ended, phase, running, start, state
from tests.waiting import eventually

__all__ = ["cluster"]

pytestmark = pytest.mark.live

SLEEP = ("sh", "-c", "echo up; while true; do sleep 0.05; done")


@pytest.mark.parametrize(
    ("script", "code", "reason", "phase"),
    [
        pytest.param("exit 0", 0, "Completed", "Succeeded", id="all is well"),
        pytest.param("exit 7", 7, "Error", "Failed", id="an exit code"),
        pytest.param("kill -SEGV $$$$", 139, "Error", "Failed", id="a signal"),
        pytest.param("kill -KILL $$$$", 137, "Error", "Failed", id="killed"),
    ],
)
def test_the_end_of_a_process_is_the_end_of_its_pod(calls, script, code, reason, phase):
    """Exit codes, and 128 + n for signals."""
    status = ended(calls, start(calls, pod("one", "sh", "-c", script)))

    told = state(status)
    assert (status["phase"], told["is"], told["exitCode"], told["reason"]) == (phase, "terminated", code, reason)
    assert told["startedAt"] <= told["finishedAt"]


def test_each_pod_has_a_node_and_an_address_of_its_own(calls):
    """Of the loopback network, so that all may listen on the same port."""
    names = [start(calls, pod("one", *SLEEP)) for _ in range(3)]
    for name in names:
        running(calls, name)
    found = [calls.get("pods", name)[1] for name in names]

    assert len({one["status"]["podIP"] for one in found}) == 3
    assert all(one["status"]["podIP"].startswith("127.") for one in found)
    assert len({one["spec"]["nodeName"] for one in found}) == 3, "the emptiest node is taken"
    for name in names:
        calls.delete("pods", name, gracePeriodSeconds=0)


def test_a_container_gets_its_environment(calls):
    """Values, references to each other, to objects, and to the pod itself."""
    calls.create("secrets", {"metadata": {"name": "s"}, "stringData": {"k": "secret"}})
    calls.create("configmaps", {"metadata": {"name": "c"}, "data": {"K1": "one", "K2": "two"}})
    env = [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)b $$(A) $(NONE) $$$$c $d $"},
        {"name": "C", "value": "$($(A)) $(A $$(PATH)"},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "O", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}},
    ]
    script = 'echo "$$B/$$C/$$S/$${O-unset}/$$LABEL/$$P_K1$$P_K2/$$0/$$1/$$IP"'
    container = {"env": env, "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}]}
    words = ("sh", "-c", script, "$(A)", "$(PATH)")
    name = start(calls, pod("one", *words, container=container, metadata={"labels": {"x": "label"}}))

    status = ended(calls, name)

    told = calls.get("pods", name, "log")[1].strip()
    values = ("ab $(A) $(NONE) $$c $d $", "$($(A)) $(A $$(PATH)", "secret", "unset", "label", "onetwo", "a", "$(PATH)")
    assert told.split("/") == [*values, status["podIP"]]


def test_volumes_are_folders_under_the_paths_where_they_are_mounted(calls):
    """What one container writes another reads; secrets and ConfigMaps are files."""
    calls.create("secrets", {"metadata": {"name": "s"}, "stringData": {"token": "secret"}})
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "none", "configMap": {"name": "none", "optional": True}},
    ]
    mounts = [
        {"name": "scratch", "mountPath": "/data/scratch"},
        {"name": "secret", "mountPath": "/etc/secret"},
        {"name": "about", "mountPath": "/etc/about"},
        {"name": "none", "mountPath": "/etc/none"},
    ]
    first = {
        "name": "first",
        "image": "any",
        "command": ["sh", "-c", "echo from first > /data/scratch/f"],
        "volumeMounts": mounts,
    }
    script = "cat /data/scratch/f /etc/secret/token /etc/about/name; ls /etc/none | wc -l"
    name = start(
        calls, pod("one", "sh", "-c", script, container={"volumeMounts": mounts}, volumes=volumes, initContainers=[first])
    )

    assert ended(calls, name)["phase"] == "Succeeded"
    assert calls.get("pods", name, "log")[1].split("\n")[0] == "from first"
    assert f"secret{name}0" in "".join(calls.get("pods", name, "log")[1].split())


def test_init_containers_run_one_after_the_other(calls):
    """Containers wait for all of them; one that fails ends a pod that is never restarted."""

    def first(name, script):
        return {"name": name, "image": "any", "command": ["sh", "-c", script]}

    name = start(calls, pod("one", "true", initContainers=[first("a", "exit 0"), first("b", "exit 4"), first("c", "exit 0")]))

    status = ended(calls, name)

    assert status["phase"] == "Failed"
    assert [state(status, container)["is"] for container in ("a", "b", "c", "main")] == [
        "terminated",
        "terminated",
        "waiting",
        "waiting",
    ]
    assert state(status, "b")["exitCode"] == 4


def test_a_sidecar_ends_with_the_containers(calls):
    """It starts before them, and its end is not the pod's."""
    sidecar = {"name": "side", "image": "any", "command": list(SLEEP), "restartPolicy": "Always"}
    name = start(calls, pod("one", "sh", "-c", "exit 0", initContainers=[sidecar], terminationGracePeriodSeconds=1))

    status = ended(calls, name)

    assert status["phase"] == "Succeeded"
    assert state(status, "side")["is"] == "terminated"


def test_a_container_that_fails_is_restarted(calls):
    """OnFailure: until it succeeds, with its count, its last end and its last log."""
    volumes = [{"name": "v", "emptyDir": {}}]
    script = "if [ -f /data/again ]; then echo second; exit 0; fi; touch /data/again; echo first; exit 3"
    container = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    name = start(calls, pod("one", "sh", "-c", script, container=container, volumes=volumes, restartPolicy="OnFailure"))

    status = ended(calls, name)

    (told,) = status["containerStatuses"]
    assert (status["phase"], told["restartCount"], told["lastState"]["terminated"]["exitCode"]) == ("Succeeded", 1, 3)
    assert calls.get("pods", name, "log")[1] == "second\n"
    assert calls.get("pods", name, "log", previous="true")[1] == "first\n"


def test_a_deleted_pod_is_asked_to_end(calls):
    """TERM, and its exit code is told before it goes."""
    name = start(calls, pod("one", "sh", "-c", "trap 'exit 5' TERM; echo up; while true; do sleep 0.05; done"))
    running(calls, name, "up")
    version = calls.version("pods")

    calls.delete("pods", name)

    eventually(lambda: phase(calls, name) == "gone")
    heard = calls.watch("pods", resourceVersion=version, fieldSelector=f"metadata.name={name}")
    assert [event["type"] for event in heard][-1] == "DELETED"
    last = heard[-1]["object"]["status"]
    assert (last["phase"], state(last)["exitCode"]) == ("Failed", 5)


def test_a_pod_that_does_not_end_is_killed(calls):
    """When its grace is over, and not before."""
    name = start(calls, pod("one", "sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.05; done"))
    running(calls, name, "up")
    version = calls.version("pods")

    calls.delete("pods", name, gracePeriodSeconds=1)

    eventually(lambda: phase(calls, name) == "gone")
    heard = calls.watch("pods", resourceVersion=version, fieldSelector=f"metadata.name={name}")
    assert state(heard[-1]["object"]["status"])["exitCode"] == 137


@pytest.mark.parametrize("deletion", [{"gracePeriodSeconds": 0}, None], ids=["by force", "from behind"])
def test_what_is_gone_is_stopped(server, calls, tmp_path, deletion):
    """A pod that was removed from the API without its node being asked is killed there too."""
    beat = tmp_path / "beat"
    name = start(calls, pod("one", "sh", "-c", f"echo up; while true; do echo x >> {beat}; sleep 0.05; done"))
    running(calls, name, "up")

    if deletion:
        calls.delete("pods", name, deletion)
    else:
        server.vanish(resource="pods", name=name, namespace=calls.namespace)

    def silent():
        size = beat.stat().st_size
        return not eventually_grows(beat, size)

    assert phase(calls, name) == "gone"
    eventually(silent)


def eventually_grows(path, size):
    try:
        return eventually(lambda: path.stat().st_size > size, timeout=0.1)
    except AssertionError:
        return False


def test_whoever_a_container_started_ends_with_it(calls, tmp_path):
    """A process that left its session is found and killed, as it would be in a PID namespace."""
    beat = tmp_path / "beat"
    escape = f"while true; do echo x >> {beat}; sleep 0.05; done"
    name = start(calls, pod("one", "sh", "-c", f"setsid sh -c '{escape}' & while [ ! -s {beat} ]; do sleep 0.05; done; exit 0"))

    assert ended(calls, name)["phase"] == "Succeeded"
    assert not eventually_grows(beat, beat.stat().st_size)


WHO_AM_I = """
import os, pathlib, urllib.request as u
token = pathlib.Path(os.environ["RALLYPOINT_SERVICE_ACCOUNT"], "token").read_text()
url = os.environ["RALLYPOINT_API_SERVER"] + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
request = u.Request(url, b"{}", {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
print(u.build_opener(u.ProxyHandler({})).open(request).read().decode())
"""


def test_a_pod_speaks_to_the_api_as_its_account(calls):
    """Its token lies where it is told, and so is the address of the server."""
    name = start(calls, pod("one", "python", "-c", WHO_AM_I))

    assert ended(calls, name)["phase"] == "Succeeded", calls.get("pods", name, "log")
    assert f"system:serviceaccount:{calls.namespace}:default" in str(calls.get("pods", name, "log")[1])
