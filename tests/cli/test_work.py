"""What a submission's FILE is, and what becomes of it: job files, settings of the generator, manifests."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.site import Site
from rallypoint.cli.options import Where
from rallypoint.cli.work import KindError, drawn
from rallypoint.job import JobError
from rallypoint.wire.plan import Kind

JOB: dict[str, Any] = {"name": "digits", "entrypoint": "train.py", "image": "any:1", "nodes": 2}
SETTINGS: dict[str, Any] = {"jobName": "digits", "containerImage": "any:1", "mainProgram": "train.py", "numPods": 2}
POD = {"spec": {"containers": [{"name": "pytorch", "image": "any:1", "command": ["true"]}]}}
MANIFEST: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "digits"},
    "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": POD}}},
}


@pytest.fixture
def draw(tmp_path):
    """Draw what stands in a file; `words` are options by their names."""

    def perform(document: dict[str, Any], *, here: bool = False, **words: Any) -> Any:
        file = tmp_path / "what.yaml"
        file.write_text(yaml.safe_dump(document))
        where = Where(site=Site() if here else Site(kind="kubernetes"))
        told = {"file": file, "kind": None, "settings": [], "name": None, "where": where, "arguments": {}, **words}
        return drawn(KubernetesBackend(Access(namespace="default", server="http://nowhere")), argparse.Namespace(**told))

    return perform


def kinds_of(blueprint: Any) -> list[str]:
    """The kinds of what would be created, each once, in their order."""
    return list(dict.fromkeys(item["kind"] for item in blueprint.objects))


@pytest.mark.parametrize(
    ("document", "kind", "expected", "made"),
    [
        pytest.param(JOB, None, Kind.PODS, "Pod", id="a job file"),
        pytest.param(JOB, "appwrapper", Kind.APPWRAPPER, "AppWrapper", id="a job file in a wrapper"),
        pytest.param(JOB, "pytorchjob", Kind.PYTORCHJOB, "PyTorchJob", id="a job file in a PyTorchJob"),
        pytest.param(SETTINGS, None, Kind.APPWRAPPER, "AppWrapper", id="settings"),
        pytest.param(SETTINGS, "pods", Kind.PODS, "Pod", id="settings as plain pods"),
        pytest.param(SETTINGS, "pytorchjob", Kind.PYTORCHJOB, "PyTorchJob", id="settings without their wrapper"),
        pytest.param(MANIFEST, None, Kind.PYTORCHJOB, "PyTorchJob", id="a manifest as it is"),
        pytest.param(MANIFEST, "appwrapper", Kind.APPWRAPPER, "AppWrapper", id="a manifest in a wrapper"),
    ],
)
def test_each_file_becomes_each_kind(draw, document, kind, expected, made):
    """A file is known by its keys; the kind says what becomes of it."""
    blueprint = draw(document, kind=kind)

    assert (blueprint.plan.kind, blueprint.plan.name) == (expected, "digits")
    assert made in kinds_of(blueprint)


@pytest.mark.parametrize("document", [JOB, SETTINGS, MANIFEST], ids=["job file", "settings", "manifest"])
def test_another_name_is_the_jobs_name(draw, document):
    """In whatever form the file has it."""
    assert draw(document, name="again").plan.name == "again"


@pytest.mark.parametrize(
    ("document", "setting"),
    [
        pytest.param(JOB, "nodes=3", id="job file"),
        pytest.param(SETTINGS, "numPods=3", id="settings"),
        pytest.param(MANIFEST, "spec.pytorchReplicaSpecs.Master.replicas=3", id="manifest"),
    ],
)
def test_a_setting_changes_the_file(draw, document, setting):
    """By the file's own keys."""
    assert draw(document, settings=[setting]).plan.max_nodes == 3


@pytest.mark.parametrize(
    ("document", "words", "said"),
    [
        pytest.param(MANIFEST, {"kind": "pods"}, "--kind pods: .* is a manifest", id="a manifest as pods"),
        pytest.param(MANIFEST, {"here": True}, "add --backend kubernetes", id="a manifest on this machine"),
        pytest.param(SETTINGS, {"here": True}, "add --backend kubernetes", id="settings on this machine"),
        pytest.param(
            JOB,
            {"here": True, "kind": "appwrapper"},
            "--kind appwrapper: this kind of job runs only on Kubernetes",
            id="a kind here",
        ),
    ],
)
def test_what_cannot_be_is_refused(draw, document, words, said):
    """With what would do."""
    with pytest.raises(KindError, match=said):
        draw(document, **words)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param(
            {**MANIFEST, "metadata": {}},
            "metadata.name: is missing; set the name of the job here, or pass --name",
            id="no name",
        ),
        pytest.param({**SETTINGS, "numPods": 0}, "numPods: 0 is not allowed", id="a wrong setting"),
        pytest.param({**JOB, "nodes": 0}, "nodes: 0 is not allowed", id="a wrong field"),
    ],
)
def test_what_is_wrong_is_named(draw, document, said):
    """The field, the value, and what is allowed."""
    with pytest.raises(JobError, match=said):
        draw(document)
