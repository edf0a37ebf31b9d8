"""The ways to change a part of an object."""

from __future__ import annotations

import pytest

from tests.emulator.patches import json_patch, merge_patch
from tests.emulator.strategic import strategic_merge
from tests.emulator_tests.calls import config_map, pod


@pytest.mark.parametrize(
    ("target", "patch", "after"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": None}, {"a": 1}, id="null takes away"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="objects are merged"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="lists are replaced"),
        pytest.param({"a": 1}, {"a": {"b": None}}, {"a": {}}, id="an object for a value"),
    ],
)
def test_merge_patches(target, patch, after):
    """RFC 7386."""
    assert merge_patch(target, patch) == after


@pytest.mark.parametrize(
    ("operations", "after"),
    [
        pytest.param([{"op": "add", "path": "/a/x~1y", "value": 1}], {"a": {"b": [1, 2], "x/y": 1}}, id="add, with an escape"),
        pytest.param([{"op": "add", "path": "/a/b/-", "value": 3}], {"a": {"b": [1, 2, 3]}}, id="add to the end"),
        pytest.param([{"op": "add", "path": "/a/b/0", "value": 0}], {"a": {"b": [0, 1, 2]}}, id="add before"),
        pytest.param([{"op": "remove", "path": "/a/b/0"}], {"a": {"b": [2]}}, id="remove"),
        pytest.param([{"op": "replace", "path": "/a/b/1", "value": 9}], {"a": {"b": [1, 9]}}, id="replace"),
        pytest.param([{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": [1, 2]}, id="move"),
        pytest.param([{"op": "copy", "from": "/a/b", "path": "/c"}], {"a": {"b": [1, 2]}, "c": [1, 2]}, id="copy"),
        pytest.param([{"op": "test", "path": "/a/b/0", "value": 1}], {"a": {"b": [1, 2]}}, id="test"),
    ],
)
def test_json_patches(operations, after):
    """RFC 6902."""
    assert json_patch({"a": {"b": [1, 2]}}, operations) == after


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        pytest.param({"containers": [{"name": "a", "image": "2"}]}, [("a", "2", 7), ("b", "1", None)], id="one is changed"),
        pytest.param(
            {"containers": [{"name": "c", "image": "3"}]},
            [("a", "1", 7), ("b", "1", None), ("c", "3", None)],
            id="one is added",
        ),
        pytest.param({"containers": [{"name": "a", "$patch": "delete"}]}, [("b", "1", None)], id="one is deleted"),
        pytest.param(
            {"containers": [{"$patch": "replace"}, {"name": "c", "image": "3"}]}, [("c", "3", None)], id="all are replaced"
        ),
    ],
)
def test_strategic_patches_merge_lists_by_their_keys(patch, after):
    """Containers are told apart by their names, and what the patch does not name stays."""
    target = {"containers": [{"name": "a", "image": "1", "stdin": 7}, {"name": "b", "image": "1"}]}

    merged = strategic_merge(target, patch)

    assert [(one["name"], one["image"], one.get("stdin")) for one in merged["containers"]] == after


def test_strategic_patches_treat_finalizers_as_a_set():
    """A finalizer is added once, and taken off by a directive."""
    added = strategic_merge({"finalizers": ["a"]}, {"finalizers": ["a", "b"]})
    less = strategic_merge(added, {"$deleteFromPrimitiveList/finalizers": ["a"]})

    assert (added, less) == ({"finalizers": ["a", "b"]}, {"finalizers": ["b"]})


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        pytest.param("merge", {"metadata": {"labels": {"a": "b"}}}, id="merge"),
        pytest.param("strategic", {"metadata": {"labels": {"a": "b"}}}, id="strategic"),
        pytest.param("json", [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}], id="json"),
    ],
)
def test_patches_are_stored(calls, kind, patch):
    """Each media type is understood."""
    calls.create("pods", pod("one"))

    code, after = calls.patch("pods", "one", patch, kind)

    assert (code, after["metadata"]["labels"]) == (200, {"a": "b"})


def test_a_patch_that_knows_an_older_version_is_a_conflict(calls):
    """A patch may name the version that it means, and is refused when that no longer exists."""
    _, old = calls.create("configmaps", config_map("one"))
    calls.patch("configmaps", "one", {"data": {"a": "1"}})

    code, _ = calls.patch(
        "configmaps", "one", {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"a": "2"}}
    )

    assert code == 409
    assert calls.get("configmaps", "one")[1]["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("kind", "patch", "code"),
    [
        pytest.param("json", [{"op": "test", "path": "/data/a", "value": "2"}], 422, id="a test that fails"),
        pytest.param("json", [{"op": "remove", "path": "/data/b"}], 422, id="nothing to remove"),
        pytest.param("json", {"data": {}}, 400, id="no list"),
        pytest.param("json", [{"op": "wish", "path": "/data/a"}], 400, id="no operation"),
    ],
)
def test_patches_that_cannot_be_done_are_refused(calls, kind, patch, code):
    """And nothing of them is done."""
    _, old = calls.create("configmaps", config_map("one", {"a": "1"}))

    assert calls.patch("configmaps", "one", patch, kind)[0] == code
    assert calls.get("configmaps", "one")[1] == old


def test_a_patch_needs_a_type_of_patch(server, calls):
    """application/json is no patch: 415."""
    calls.create("configmaps", config_map("one"))

    assert server.request("PATCH", calls.path("configmaps", "one"), {})[0] == 415
