"""Objects: how they come, how they are found, and how they are replaced."""

from __future__ import annotations

import pytest

from tests.emulator_tests.calls import config_map, pod


def test_a_created_object_has_what_the_server_gives(calls):
    """A uid, a version, a time and its namespace are the server's to give, and what the caller wrote there is dropped."""
    code, made = calls.create("configmaps", config_map("one", {"a": "1"}, uid="mine", creationTimestamp="1999-01-01T00:00:00Z"))

    assert code == 201
    assert made["metadata"]["uid"] not in {"", "mine"}
    assert made["metadata"]["resourceVersion"].isdigit()
    assert made["metadata"]["creationTimestamp"].startswith("2")
    assert made["metadata"]["namespace"] == calls.namespace


def test_generated_names_begin_as_asked_and_differ(calls):
    """GenerateName yields a new name each time."""
    names = {calls.create("pods", {**pod(""), "metadata": {"generateName": "job-"}})[1]["metadata"]["name"] for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("job-") for name in names)


@pytest.mark.parametrize(
    ("code", "reason", "plural", "body"),
    [
        pytest.param(409, "AlreadyExists", "configmaps", config_map("one"), id="there already"),
        pytest.param(422, "Invalid", "configmaps", config_map("Bad_Name"), id="an illegal name"),
        pytest.param(422, "Invalid", "configmaps", {"data": {}}, id="no name"),
        pytest.param(422, "Invalid", "configmaps", config_map("two", {"a/b": "1"}), id="an illegal key"),
        pytest.param(422, "Invalid", "configmaps", config_map("two", labels={"a": "b c"}), id="an illegal label"),
        pytest.param(422, "Invalid", "pods", {"metadata": {"name": "p"}, "spec": {}}, id="a pod without containers"),
        pytest.param(400, "BadRequest", "configmaps", {**config_map("two"), "kind": "Secret"}, id="another kind"),
        pytest.param(400, "BadRequest", "configmaps", config_map("two", namespace="elsewhere"), id="another namespace"),
        pytest.param(400, "BadRequest", "configmaps", config_map("two", resourceVersion="7"), id="a version"),
    ],
)
def test_bad_creations_are_refused(calls, code, reason, plural, body):
    """A creation that cannot be is answered by a Status with the code and the reason of the real server."""
    calls.create("configmaps", config_map("one"))

    answered, status = calls.create(plural, body)

    assert (answered, status["kind"], status["code"], status["reason"]) == (code, "Status", code, reason)


def test_nothing_is_created_in_a_namespace_that_is_not_there(server):
    """A missing namespace is told by name."""
    code, status = server.request("POST", "/api/v1/namespaces/nowhere/configmaps", config_map("one"))

    assert (code, status["message"]) == (404, 'namespaces "nowhere" not found')


def test_what_is_not_there_is_not_found(calls):
    """404 with the reason NotFound and the name."""
    code, status = calls.get("pods", "nope")

    assert (code, status["reason"], status["details"]["name"]) == (404, "NotFound", "nope")


def test_a_dry_run_answers_and_keeps_nothing(calls):
    """dryRun=All answers as if it were done."""
    code, made = calls.create("pods", pod("one"), dryRun="All")

    assert (code, made["status"]["phase"]) == (201, "Pending")
    assert calls.get("pods", "one")[0] == 404


def test_items_of_a_list_are_bare(calls):
    """A list has its kind and version; items of built-in kinds have none of their own, as from the real server."""
    calls.create("pods", pod("one"))

    told = calls.listed("pods")

    assert (told["kind"], told["apiVersion"]) == ("PodList", "v1")
    assert int(told["metadata"]["resourceVersion"]) >= int(told["items"][0]["metadata"]["resourceVersion"])
    assert "kind" not in told["items"][0]
    assert calls.get("pods", "one")[1]["kind"] == "Pod"


def test_a_list_comes_in_pages(calls):
    """Pages are all of one version, and together they are the list."""
    for index in range(5):
        calls.create("configmaps", config_map(f"c{index}"))
    first = calls.listed("configmaps", limit=2)
    second = calls.listed("configmaps", limit=2, **{"continue": first["metadata"]["continue"]})
    third = calls.listed("configmaps", limit=2, **{"continue": second["metadata"]["continue"]})

    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == [f"c{index}" for index in range(5)]
    assert "continue" not in third["metadata"]
    assert first["metadata"]["resourceVersion"] == third["metadata"]["resourceVersion"]


def test_a_replacement_of_what_has_changed_is_a_conflict(calls):
    """Of two who replace the same version one succeeds, and the other is told to read again."""
    _, old = calls.create("configmaps", config_map("one", {"a": "1"}))

    first = calls.replace("configmaps", "one", {**old, "data": {"a": "2"}})
    second = calls.replace("configmaps", "one", {**old, "data": {"a": "3"}})

    assert (first[0], second[0], second[1]["reason"]) == (200, 409, "Conflict")
    assert calls.get("configmaps", "one")[1]["data"] == {"a": "2"}


def test_a_replacement_of_another_object_is_a_conflict(calls):
    """A uid that is not the one of the object there is refused: it is another with the same name."""
    _, old = calls.create("configmaps", config_map("one"))
    body = {**old, "metadata": {**old["metadata"], "uid": "other", "resourceVersion": ""}}

    assert calls.replace("configmaps", "one", body)[0] == 409


def test_a_lease_is_only_replaced_with_its_version(calls):
    """Leases refuse a replacement without a resourceVersion: whoever holds one must have read it."""
    _, lease = calls.create("leases", {"metadata": {"name": "one"}, "spec": {"holderIdentity": "me"}})
    blind = {"metadata": {"name": "one"}, "spec": {"holderIdentity": "you"}}

    assert calls.replace("leases", "one", blind)[0] == 422
    assert calls.replace("leases", "one", lease)[0] == 200


def test_a_write_that_changes_nothing_is_no_change(calls):
    """The version stays, so that nobody who watches hears of it."""
    _, old = calls.create("configmaps", config_map("one", {"a": "1"}))

    _, same = calls.replace("configmaps", "one", old)

    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


def test_the_status_is_written_through_its_subresource_alone(calls):
    """The main resource keeps the status, the subresource keeps the rest."""
    calls.create("pods", pod("one"))
    calls.patch("pods", "one", {"status": {"phase": "Failed"}})
    assert calls.get("pods", "one")[1]["status"]["phase"] == "Pending"

    calls.patch("pods", "one", {"status": {"phase": "Running"}, "spec": {"nodeName": "x"}}, subresource="status")
    found = calls.get("pods", "one")[1]
    assert (found["status"]["phase"], found["spec"].get("nodeName")) == ("Running", None)


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        pytest.param({"spec": {"restartPolicy": "Always"}}, 422, id="the restart policy"),
        pytest.param({"spec": {"nodeSelector": {"a": "b"}}}, 422, id="the node selector"),
        pytest.param({"spec": {"activeDeadlineSeconds": 5}}, 200, id="the deadline"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, 200, id="a label"),
    ],
)
def test_most_of_a_pod_never_changes(calls, patch, code):
    """A pod's spec is what it was created with, but for a few fields."""
    calls.create("pods", pod("one"))

    assert calls.patch("pods", "one", patch)[0] == code


def test_gates_are_taken_away_and_never_added(calls):
    """A gated pod is let go gate by gate; a new gate is refused."""
    calls.create("pods", pod("one", schedulingGates=[{"name": "a/b"}, {"name": "c/d"}]))

    assert calls.patch("pods", "one", {"spec": {"schedulingGates": [{"name": "c/d"}]}})[0] == 200
    assert calls.patch("pods", "one", {"spec": {"schedulingGates": [{"name": "a/b"}, {"name": "c/d"}]}})[0] == 422


def test_strings_of_a_secret_are_encoded(calls):
    """StringData is written, and comes back as data."""
    _, made = calls.create("secrets", {"metadata": {"name": "one"}, "stringData": {"k": "v"}})

    assert (made["data"], "stringData" in made, made["type"]) == ({"k": "dg=="}, False, "Opaque")


def test_an_immutable_object_keeps_its_data(calls):
    """`immutable: true` cannot be undone."""
    calls.create("configmaps", {**config_map("one", {"a": "1"}), "immutable": True})

    assert calls.patch("configmaps", "one", {"data": {"a": "2"}})[0] == 422
    assert calls.patch("configmaps", "one", {"immutable": None})[0] == 422


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        pytest.param("GET", "/api/v1/nothings", 404, id="an unknown kind"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/one/nonsense", 404, id="an unknown subresource"),
        pytest.param("GET", "/apis/nobody.com/v1/things", 404, id="an unknown group"),
        pytest.param("POST", "/api/v1/namespaces/default/pods/one", 405, id="a POST to an object"),
        pytest.param("PUT", "/api/v1/namespaces/default/pods", 405, id="a PUT to a collection"),
    ],
)
def test_what_is_not_served_is_told_so(server, method, path, code):
    """404 for what nobody serves, 405 for what cannot be done with it."""
    assert server.request(method, path, {} if method != "GET" else None)[0] == code
