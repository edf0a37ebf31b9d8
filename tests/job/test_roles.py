"""Roles: three ways to write them, what they run, and how many nodes they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rallypoint.job import ElasticJob, JobError, Role, compile_plan, load_job
from rallypoint.job.values import Entrypoint, read_entrypoint, read_nodes, write_entrypoint, write_nodes
from rallypoint.wire.node_range import NodeRange
from rallypoint.wire.plan import Entry

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}


def role_of(**fields):
    return load_job(GOOD, **fields).roles[0]


def test_the_three_forms_of_one_role_are_the_same_job():
    """Short, list and mapping: the form is gone after reading."""
    role = {"entrypoint": "train.py", "nodes": "1:2", "env": {"A": 1}}
    short = load_job({"name": "digits", **role})

    assert load_job({"name": "digits", "roles": [{"name": "trainer", **role}]}) == short
    assert load_job({"name": "digits", "roles": [role]}) == short
    assert load_job({"name": "digits", "roles": {"trainer": role}}) == short
    assert [role.name for role in short.roles] == ["trainer"]


def test_several_roles_keep_their_order():
    """A job may have any number of roles, in the order of the document."""
    job = load_job({"name": "rl", "roles": {"learner": {"entrypoint": "l.py"}, "actor": {"entrypoint": "a.py"}}})

    assert [role.name for role in job.roles] == ["learner", "actor"]


def test_a_role_and_a_job_are_frozen():
    """Nobody changes what was submitted."""
    job = load_job(GOOD)
    for value, field in ((job, "name"), (job.roles[0], "nodes"), (job.recovery, "max_restarts")):
        with pytest.raises(ValidationError):
            setattr(value, field, 1)


def test_models_are_taken_as_they_are():
    """A job can be built from roles that are values already, and a job from a job."""
    role = Role(entrypoint=Entrypoint(entry=Entry.SCRIPT, words=("train.py",)), nodes=NodeRange(min=1, max=2))
    job = ElasticJob(name="digits", roles=(role,))

    assert job.roles == (role,)
    assert ElasticJob.model_validate(job) == job


@pytest.mark.parametrize(
    ("given_as", "entry", "words"),
    [
        pytest.param("train.py", Entry.SCRIPT, ("train.py",), id="script"),
        pytest.param(Path("src/train.py"), Entry.SCRIPT, ("src/train.py",), id="script as a path"),
        pytest.param("-m pkg.train", Entry.MODULE, ("pkg.train",), id="module as a flag"),
        pytest.param(["bash", "-c", "echo $RANK"], Entry.COMMAND, ("bash", "-c", "echo $RANK"), id="list"),
        pytest.param(["sleep", 5], Entry.COMMAND, ("sleep", "5"), id="list with a number"),
        pytest.param({"script": "my train.py"}, Entry.SCRIPT, ("my train.py",), id="script with white space"),
        pytest.param({"script": "-m"}, Entry.SCRIPT, ("-m",), id="script like a flag"),
        pytest.param({"module": "pkg.train"}, Entry.MODULE, ("pkg.train",), id="module"),
        pytest.param(
            {"command": "bash -c 'echo a b'"}, Entry.COMMAND, ("bash", "-c", "echo a b"), id="command as a shell reads it"
        ),
        pytest.param({"command": ["a b", "c"]}, Entry.COMMAND, ("a b", "c"), id="command as a list"),
    ],
)
def test_an_entrypoint_is_a_script_a_module_or_a_command(given_as, entry, words):
    """Each form says without guessing what runs."""
    assert role_of(entrypoint=given_as).entrypoint == Entrypoint(entry=entry, words=words)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"script": ""}, id="no script"),
        pytest.param({"module": "a-b"}, id="no module name"),
        pytest.param({"module": "a..b"}, id="an empty part of a module's name"),
        pytest.param({"command": ""}, id="an empty command"),
        pytest.param({"command": ["", "a"]}, id="an empty program"),
        pytest.param({"command": [None]}, id="null in a command"),
        pytest.param({"shell": "a"}, id="an unknown kind"),
        pytest.param("-u train.py", id="another flag"),
        pytest.param("  ", id="white space"),
        pytest.param("a\0b", id="NUL"),
    ],
)
def test_an_entrypoint_that_is_none_of_them_is_refused(value):
    """Nothing is guessed."""
    with pytest.raises(JobError, match=r"^entrypoint: "):
        role_of(entrypoint=value)


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(
    st.builds(Entrypoint, entry=st.just(Entry.SCRIPT), words=st.tuples(WORDS))
    | st.builds(Entrypoint, entry=st.just(Entry.MODULE), words=st.tuples(st.from_regex(r"\A[a-z_][a-z0-9]*(\.[a-z]+)*\Z")))
    | st.builds(Entrypoint, entry=st.just(Entry.COMMAND), words=st.lists(WORDS, min_size=1).map(tuple))
)
def test_every_entrypoint_reads_back_as_itself(entrypoint):
    """write_entrypoint loses nothing, whatever the words are."""
    assert read_entrypoint(write_entrypoint(entrypoint)) == entrypoint


@given(st.integers(1, 16_384), st.integers(1, 16_384))
def test_every_range_of_nodes_reads_back_as_itself(one, other):
    """write_nodes loses nothing, as a document has it and as text."""
    nodes = NodeRange(min=min(one, other), max=max(one, other))

    assert read_nodes(write_nodes(nodes)) == nodes
    assert read_nodes(str(nodes)) == nodes


@pytest.mark.parametrize(
    ("nodes", "unit"),
    [
        pytest.param("2:4", 2, id="both ends"),
        pytest.param(6, 3, id="a number"),
        pytest.param("4", "2", id="numbers as templates render them"),
    ],
)
def test_nodes_that_are_multiples_of_the_unit_are_taken(nodes, unit):
    """A world can be any multiple of the unit."""
    role = role_of(nodes=nodes, node_unit=unit)

    assert role.nodes.min % role.node_unit == role.nodes.max % role.node_unit == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(4, "4", id="int"),
        pytest.param(0.5, "0.5", id="float"),
        pytest.param("500m", "500m", id="milli"),
        pytest.param("8Gi", "8Gi", id="binary"),
        pytest.param("1.5G", "1.5G", id="decimal"),
        pytest.param("2e3", "2e3", id="exponent"),
    ],
)
def test_quantities_are_kubernetes_own(value, text):
    """Numbers and suffixes are taken in the form of Kubernetes and kept as text."""
    resources = role_of(resources={"cpu": value, "memory": value, "gpus": 1, "extended": {"rdma/hca": value}}).resources

    assert (resources.cpu, resources.memory, resources.extended) == (text, text, {"rdma/hca": text})


@pytest.mark.parametrize("value", ["", "8GB", "1 Gi", "Gi", "-1", "1,5", True, None, float("inf")])
def test_what_is_no_quantity_is_refused(value):
    """A typing error in a unit is an error here and not in the cluster."""
    with pytest.raises(JobError, match=r"^resources\.memory: "):
        role_of(resources={"memory": value})


def test_a_job_does_not_change_with_the_document_it_came_from():
    """Values are copied when they are read."""
    document = {**GOOD, "affinity": {"podAffinity": {"preferred": []}}, "env": {"A": "1"}}
    job = load_job(document)
    document["affinity"]["podAffinity"]["preferred"].append(1)
    document["env"]["A"] = "2"

    assert job.roles[0].affinity == {"podAffinity": {"preferred": []}}
    assert job.roles[0].env == {"A": "1"}


def test_pod_fields_are_kept_as_they_are():
    """What backends put into pods is carried without change, empty mappings included."""
    fields: dict[str, Any] = {
        "image": "registry.example/train:1",
        "node_selector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 60}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "volume_mounts": [{"name": "cache", "mountPath": "/cache"}],
        "service_account": "trainer",
        "image_pull_secrets": ["registry"],
        "priority_class": "high",
        "labels": {"team": "vision"},
        "annotations": {"example.com/note": "two words"},
        "image_pull_policy": "Never",
        "python": ["/opt/python", "-X", "dev"],
        "pod_env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "sidecars": [{"name": "ship", "image": "ship:1"}],
        "queue": "team-a",
        "termination_grace_period": "2m",
        "pod_template": {"spec": {"runtimeClassName": "nvidia", "containers": [{"name": "trainer", "stdin": True}]}},
    }
    document = load_job(GOOD, **fields).to_document()

    assert {key: document[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("value", "binding"),
    [
        pytest.param(True, "node", id="yes: the node"),
        pytest.param("true", "node", id="yes, in a template's words"),
        pytest.param(False, "", id="no"),
        pytest.param("core-complex", "core-complex", id="a nearer place"),
    ],
)
def test_workers_may_be_bound_to_cpus(value, binding):
    """By DLRover's switch, or in torchrun's words."""
    job = ElasticJob.model_validate({**GOOD, "numa_affinity": value})

    assert compile_plan(job)[0].workers.numa_binding == binding
    assert ElasticJob.model_validate(job.to_document()) == job


def test_another_binding_is_an_error():
    """With what is allowed."""
    with pytest.raises(
        JobError,
        match="numa_affinity: 'far' is not allowed; expected true \\(same as node\\), false, or one of node",
    ):
        ElasticJob.model_validate({**GOOD, "numa_affinity": "far"})
