"""The schemas of custom resources that other tests validate against."""

from __future__ import annotations

import gzip

import pytest
import yaml

from tests.crds import FOLDER, problems

WRAPPER = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "w"},
    "spec": {"components": [{"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}}]},
}


def test_every_definition_says_where_it_is_from():
    """A file of somebody else's is named in the README, with its source."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in FOLDER.glob("*.gz"))

    assert len(files) == 6
    assert [name for name in files if name not in text] == []


@pytest.mark.parametrize("name", ["appwrappers", "jobsets", "pytorchjobs", "rayclusters", "rayjobs", "trainjobs"])
def test_every_definition_is_one(name):
    """Each file holds one definition that serves a version with a schema."""
    definition = yaml.load(gzip.decompress((FOLDER / f"{name}.yaml.gz").read_bytes()), Loader=yaml.CSafeLoader)

    assert definition["kind"] == "CustomResourceDefinition"
    assert [version["name"] for version in definition["spec"]["versions"] if version["served"] and version["schema"]]


def test_a_good_object_has_no_problems():
    """What the reference's own examples say is taken."""
    assert problems(WRAPPER) == []


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        pytest.param({"components": "x"}, "spec.components", id="wrong type"),
        pytest.param({"components": [], "suspended": True}, "spec", id="unknown field"),
        pytest.param({}, "spec", id="missing field"),
    ],
)
def test_a_bad_object_is_told_with_its_place(spec, where):
    """Wrong types, unknown fields (which the API server would drop in silence) and missing ones are found."""
    (problem,) = problems({**WRAPPER, "spec": spec})

    assert problem.startswith(f"{where}: ")
