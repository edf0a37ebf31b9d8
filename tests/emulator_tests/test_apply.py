"""Server-side apply: fields have owners."""

from __future__ import annotations

from tests.emulator_tests.calls import config_map, pod


def apply(calls, body, manager, plural="configmaps", **query):
    return calls.patch(plural, body["metadata"]["name"], body, "apply", fieldManager=manager, **query)


def test_the_first_to_apply_creates(calls):
    """201, with the fields under its name; the second time it is 200."""
    code, made = apply(calls, config_map("one", {"a": "1"}), "me")

    assert code == 201
    assert [(one["manager"], one["operation"]) for one in made["metadata"]["managedFields"]] == [("me", "Apply")]
    assert made["metadata"]["managedFields"][0]["fieldsV1"] == {"f:data": {"f:a": {}}}
    assert apply(calls, config_map("one", {"a": "2"}), "me")[0] == 200


def test_what_another_owns_is_a_conflict_unless_forced(calls):
    """409 names the owner and the field; force takes the field over."""
    apply(calls, config_map("one", {"a": "1"}), "me")

    code, status = apply(calls, config_map("one", {"a": "2"}), "you")
    assert (code, status["details"]["causes"][0]["field"]) == (409, ".data.a")
    assert 'conflict with "me"' in status["message"]

    code, after = apply(calls, config_map("one", {"a": "2"}), "you", force="true")
    assert (code, after["data"]) == (200, {"a": "2"})
    assert [one["manager"] for one in after["metadata"]["managedFields"]] == ["you"]


def test_what_is_applied_no_more_goes(calls):
    """A field that its only owner leaves out is removed; one that another wants too stays."""
    apply(calls, config_map("one", {"a": "1", "b": "1"}), "me")
    apply(calls, config_map("one", {"b": "1"}), "you")

    _, after = apply(calls, config_map("one", {}), "me")

    assert after["data"] == {"b": "1"}


def test_what_was_there_before_belongs_to_somebody(calls):
    """An object that was created plainly has an owner when it is applied first."""
    calls.create("configmaps", config_map("one", {"a": "1"}))

    assert apply(calls, config_map("one", {"a": "2"}), "me")[0] == 409
    assert apply(calls, config_map("one", {"b": "2"}), "me")[1]["data"] == {"a": "1", "b": "2"}


def test_a_plain_write_takes_the_fields_that_it_changes(calls):
    """Who applied them is in conflict afterwards."""
    apply(calls, config_map("one", {"a": "1"}), "me")
    calls.patch("configmaps", "one", {"data": {"a": "2"}}, fieldManager="editor")

    code, status = apply(calls, config_map("one", {"a": "3"}), "me")

    assert code == 409
    assert 'conflict with "editor": .data.a' in status["message"]


def test_lists_with_keys_have_owners_by_item(calls):
    """Two managers apply different containers of one pod."""
    first, second = pod("one"), pod("one")
    second["spec"] = {"containers": [{"name": "other", "image": "any"}]}
    apply(calls, first, "me", "pods")

    code, status = apply(calls, second, "you", "pods", dryRun="All")

    assert code == 422, "a pod's containers are fixed, so the merged pod is refused and not the apply"
    assert "conflict" not in status["message"]


def test_an_apply_needs_a_manager(calls):
    """400 without fieldManager."""
    assert calls.patch("configmaps", "one", config_map("one"), "apply")[0] == 400
