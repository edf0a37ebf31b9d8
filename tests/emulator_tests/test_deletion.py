"""How objects go: with grace, with finalizers, with their owners."""

from __future__ import annotations

import pytest

from tests.emulator_tests.calls import config_map, pod
from tests.waiting import eventually


def owned(name, owner, *, block=False):
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return config_map(name, ownerReferences=[{**reference, **({"blockOwnerDeletion": True} if block else {})}])


def gone(calls, plural, name):
    return calls.get(plural, name)[0] == 404


def test_a_pod_on_a_node_is_deleted_with_grace(calls):
    """It stays, marked, until its node lets it go; a shorter grace may follow, and none ends it."""
    calls.create("pods", pod("one", nodeName="somewhere"))

    code, first = calls.delete("pods", "one")
    assert (code, first["metadata"]["deletionGracePeriodSeconds"]) == (200, 30)
    assert calls.delete("pods", "one", gracePeriodSeconds=60)[1]["metadata"]["deletionGracePeriodSeconds"] == 30
    assert calls.delete("pods", "one", gracePeriodSeconds=5)[1]["metadata"]["deletionGracePeriodSeconds"] == 5
    assert calls.get("pods", "one")[1]["metadata"]["deletionTimestamp"]

    calls.delete("pods", "one", {"gracePeriodSeconds": 0})
    assert gone(calls, "pods", "one")


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        pytest.param({}, {}, id="on no node"),
        pytest.param({"nodeName": "somewhere"}, {"phase": "Failed"}, id="failed"),
        pytest.param({"nodeName": "somewhere"}, {"phase": "Succeeded"}, id="succeeded"),
    ],
)
def test_a_pod_that_runs_nowhere_goes_at_once(calls, spec, status):
    """Nobody would have to stop it."""
    calls.create("pods", pod("one", **spec))
    calls.patch("pods", "one", {"status": status}, subresource="status")

    calls.delete("pods", "one")

    assert gone(calls, "pods", "one")


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_deletion_may_name_what_it_means(calls, field):
    """Another uid, or another version, is a conflict, and nothing is deleted."""
    _, made = calls.create("configmaps", config_map("one"))

    assert calls.delete("configmaps", "one", {"preconditions": {field: "other"}})[0] == 409
    assert calls.delete("configmaps", "one", {"preconditions": {field: made["metadata"][field]}})[0] == 200


def test_a_finalizer_holds_an_object(calls):
    """It is marked and stays until its last finalizer is off; new ones are refused by then."""
    calls.create("configmaps", config_map("one", finalizers=["x.io/f"]))
    calls.delete("configmaps", "one")

    assert calls.get("configmaps", "one")[1]["metadata"]["deletionTimestamp"]
    assert calls.patch("configmaps", "one", {"metadata": {"finalizers": ["x.io/f", "y.io/g"]}})[0] == 422
    calls.patch("configmaps", "one", {"metadata": {"finalizers": None}})
    assert gone(calls, "configmaps", "one")


def test_a_collection_is_deleted_by_selector(calls):
    """What is not selected stays."""
    for name, value in (("a", "1"), ("b", "1"), ("c", "2")):
        calls.create("configmaps", config_map(name, labels={"k": value}))

    assert calls.delete("configmaps", labelSelector="k=1")[0] == 200
    assert calls.names("configmaps") == ["c"]


def test_what_is_owned_goes_with_its_owner(calls):
    """In the background, and down all generations; what has another owner yet stays."""
    _, top = calls.create("configmaps", config_map("top"))
    _, other = calls.create("configmaps", config_map("other"))
    _, child = calls.create("configmaps", owned("child", top))
    calls.create("configmaps", owned("grandchild", child))
    shared = owned("shared", top)
    shared["metadata"]["ownerReferences"] += owned("x", other)["metadata"]["ownerReferences"]
    calls.create("configmaps", shared)

    calls.delete("configmaps", "top")

    eventually(lambda: calls.names("configmaps") == ["other", "shared"])
    eventually(lambda: len(calls.get("configmaps", "shared")[1]["metadata"]["ownerReferences"]) == 1)


def test_an_owner_that_never_was_owns_nothing(calls):
    """Who refers to an owner that is not there is collected."""
    ghost = {"metadata": {"name": "ghost", "uid": "no-such-uid"}}
    calls.create("configmaps", owned("child", ghost))

    eventually(lambda: gone(calls, "configmaps", "child"))


def test_an_owner_in_the_foreground_waits(calls):
    """It goes after those that block it."""
    _, top = calls.create("configmaps", config_map("top"))
    child = owned("child", top, block=True)
    child["metadata"]["finalizers"] = ["x.io/f"]
    calls.create("configmaps", child)

    calls.delete("configmaps", "top", propagationPolicy="Foreground")

    eventually(lambda: "deletionTimestamp" in calls.get("configmaps", "child")[1]["metadata"])
    assert calls.get("configmaps", "top")[1]["metadata"]["finalizers"] == ["foregroundDeletion"]
    calls.patch("configmaps", "child", {"metadata": {"finalizers": None}})
    eventually(lambda: gone(calls, "configmaps", "top"))


def test_orphans_stay(calls):
    """propagationPolicy=Orphan: what was owned is owned no more, and stays."""
    _, top = calls.create("configmaps", config_map("top"))
    calls.create("configmaps", owned("child", top))

    calls.delete("configmaps", "top", propagationPolicy="Orphan")

    eventually(lambda: gone(calls, "configmaps", "top"))
    assert "ownerReferences" not in calls.get("configmaps", "child")[1]["metadata"]


def test_a_namespace_goes_with_everything_in_it(calls):
    """Nothing new comes into it meanwhile."""
    calls.create("configmaps", config_map("one", finalizers=["x.io/f"]))
    path = f"/api/v1/namespaces/{calls.namespace}"

    assert calls.server.request("DELETE", path)[1]["status"]["phase"] == "Terminating"
    eventually(lambda: "deletionTimestamp" in calls.get("configmaps", "one")[1]["metadata"])
    assert calls.create("configmaps", config_map("two"))[0] == 403
    calls.patch("configmaps", "one", {"metadata": {"finalizers": None}})
    eventually(lambda: calls.server.request("GET", path)[0] == 404)
