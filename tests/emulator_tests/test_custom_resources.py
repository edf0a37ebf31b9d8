"""Custom resources: served when they are defined, checked by their schema."""

from __future__ import annotations

import pytest

from tests.emulator.crds import DEFINITIONS, read_definitions
from tests.emulator_tests.calls import config_map
from tests.waiting import eventually

KEY = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1},
        "name": {"type": "string", "default": "wheel"},
        "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "spokes": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {"id": {"type": "string"}, "length": {"type": "integer"}},
            },
        },
    },
}

WHEELS = {
    "metadata": {"name": "wheels.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "wheels", "kind": "Wheel", "shortNames": ["wh"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": SPEC,
                            "status": {"type": "object", "properties": {"turns": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def wheels(server, calls):
    assert server.request("POST", KEY, WHEELS)[0] == 201
    yield calls
    server.request("DELETE", f"{KEY}/wheels.example.com")


def wheel(name="one", **spec):
    return {"metadata": {"name": name}, "spec": {"size": 1, **spec}}


def test_a_definition_is_served_and_established(server, wheels):
    """Its kind is discovered, and its conditions say so."""
    assert "example.com" in [group["name"] for group in server.request("GET", "/apis")[1]["groups"]]
    listed = server.request("GET", "/apis/example.com/v1")[1]["resources"]
    assert [entry["name"] for entry in listed] == ["wheels", "wheels/status"]

    def established():
        status = server.request("GET", f"{KEY}/wheels.example.com")[1].get("status") or {}
        return [one["type"] for one in status.get("conditions", []) if one["status"] == "True"]

    assert eventually(established) == ["NamesAccepted", "Established"]


def test_what_the_schema_does_not_know_is_dropped_and_what_it_gives_is_filled_in(wheels):
    """Pruning and defaults, but nothing below preserve-unknown-fields."""
    _, made = wheels.create("wheels", wheel(unknown=1, free={"any": {"thing": 1}}, port="http"))

    assert made["spec"] == {"size": 1, "name": "wheel", "free": {"any": {"thing": 1}}, "port": "http"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"size": "big"}, "spec.size", id="another type"),
        pytest.param({"size": 0}, "spec.size", id="too small"),
        pytest.param({"spokes": [{"length": 1}]}, "spec.spokes[0]", id="an item that lacks its key"),
    ],
)
def test_what_the_schema_refuses_is_invalid(wheels, spec, field):
    """422 with the field."""
    code, status = wheels.create("wheels", wheel(**spec))

    assert (code, status["reason"], status["details"]["causes"][0]["field"]) == (422, "Invalid", field)


def test_the_generation_counts_changes_of_the_spec(wheels):
    """Neither labels nor the status are counted."""
    wheels.create("wheels", wheel())
    wheels.patch("wheels", "one", {"metadata": {"labels": {"a": "b"}}})
    wheels.patch("wheels", "one", {"status": {"turns": 1}}, subresource="status")
    assert wheels.get("wheels", "one")[1]["metadata"]["generation"] == 1

    wheels.patch("wheels", "one", {"spec": {"size": 2}})
    found = wheels.get("wheels", "one")[1]
    assert (found["metadata"]["generation"], found["status"]) == (2, {"turns": 1})


def test_strategic_patches_are_not_for_custom_resources(wheels):
    """415, as the real server has no merge keys for them in that format."""
    wheels.create("wheels", wheel())

    assert wheels.patch("wheels", "one", {"spec": {"size": 2}}, "strategic")[0] == 415


def test_a_replacement_needs_the_version(wheels):
    """Custom resources are never replaced blindly."""
    _, made = wheels.create("wheels", wheel())

    assert wheels.replace("wheels", "one", wheel(size=2))[0] == 422
    assert wheels.replace("wheels", "one", {**made, "spec": {"size": 2}})[1]["spec"]["size"] == 2


def test_apply_merges_lists_by_the_keys_of_the_schema(wheels):
    """Two managers own different items of one list."""

    def apply(manager, identity):
        body = {"apiVersion": "example.com/v1", "kind": "Wheel", **wheel(spokes=[{"id": identity, "length": 3}])}
        return wheels.patch("wheels", "one", body, "apply", fieldManager=manager)

    apply("me", "a")
    _, after = apply("you", "b")

    assert [spoke["id"] for spoke in after["spec"]["spokes"]] == ["a", "b"]


def test_objects_go_with_their_definition(server, wheels):
    """The kind is served no more."""
    wheels.create("wheels", wheel())
    server.request("DELETE", f"{KEY}/wheels.example.com")

    assert wheels.get("wheels", "one")[0] == 404
    server.request("POST", KEY, WHEELS)
    eventually(lambda: wheels.get("wheels", "one")[0] == 404)


def test_a_custom_resource_owns_built_in_ones(wheels):
    """The collector knows owners of every kind."""
    _, made = wheels.create("wheels", wheel())
    reference = {"apiVersion": "example.com/v1", "kind": "Wheel", "name": "one", "uid": made["metadata"]["uid"]}
    wheels.create("configmaps", config_map("child", ownerReferences=[reference]))

    wheels.delete("wheels", "one")

    eventually(lambda: wheels.get("configmaps", "child")[0] == 404)


def test_the_definitions_at_hand_are_served(server):
    """AppWrappers, PyTorchJobs, JobSets and TrainJobs as their projects define them."""
    for definition in read_definitions((DEFINITIONS,)):
        assert server.request("POST", KEY, definition)[0] == 201

    groups = {group["name"] for group in server.request("GET", "/apis")[1]["groups"]}
    assert {"workload.codeflare.dev", "kubeflow.org", "jobset.x-k8s.io", "trainer.kubeflow.org"} <= groups
