"""Manifests, settings and job files as jobs in an AppWrapper or a PyTorchJob: what is created, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.labels import ATTEMPT, FIRST, JOB, PART, UID, read_pod
from rallypoint.backends.kubernetes.manifests.objects import MANIFEST_KEY
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.wrapped.blueprint import draw
from rallypoint.backends.kubernetes.wrapped.manifest import marked, wrapped_in
from rallypoint.backends.kubernetes.wrapped.seen import SUSPENDED
from rallypoint.backends.kubernetes.wrapped.template import pytorchjob_of
from rallypoint.job import load_job
from rallypoint.job.annotations import PREFIX
from rallypoint.supervision.policy import Policy
from rallypoint.wire.plan import Kind
from rallypoint.wire.python import run_module
from tests.crds import problems
from tests.kube.wrappers import pytorchjob, wrapper

REF = JobRef(name="train", uid="u1", namespace="team", owner="o1")


def job(**fields: Any) -> dict[str, Any]:
    """Return the PyTorchJob of a job file."""
    return pytorchjob_of(load_job({"name": "train", "entrypoint": "train.py", "image": "any:1", **fields}, based=False))


def trainer(made: dict[str, Any], role: str = "Master") -> dict[str, Any]:
    """Return the container of a role's pods."""
    template = made["spec"]["pytorchReplicaSpecs"][role]["template"]
    return template["spec"]["containers"][0]


def test_a_manifest_tells_its_plan() -> None:
    """Its name, its number of pods and its policies are the job's, and it is kept as it was given."""
    manifest = wrapper(pytorchjob(4), retryLimit="7", failureGracePeriodDuration="2m")
    blueprint = draw(manifest, namespace="team")

    plan = blueprint.plan
    assert (plan.name, plan.kind, plan.min_nodes, plan.max_nodes) == ("train", Kind.APPWRAPPER, 4, 4)
    assert (plan.budgets.retry_limit, plan.grace.failure_grace) == (7, 120.0)
    assert json.loads(blueprint.objects[0]["data"][MANIFEST_KEY]) == manifest
    policy = Policy.from_plan(plan)
    assert (policy.wrapped, policy.followed) == (True, True)


def test_a_manifests_annotations_out_of_range_are_taken_as_the_controller_takes_them() -> None:
    """Each with a warning; its retry limit has no ceiling."""
    manifest = wrapper(failureGracePeriodDuration="48h", warmupGracePeriodDuration="-10m", retryLimit="101")
    blueprint = draw(manifest, namespace="team")

    plan = blueprint.plan
    assert (plan.grace.failure_grace, plan.grace.warmup_grace, plan.budgets.retry_limit) == (86400.0, 0.0, 101)
    assert blueprint.warnings == (
        f"{PREFIX}failureGracePeriodDuration: '48h' is out of range; using 24h",
        f"{PREFIX}warmupGracePeriodDuration: '-10m' is out of range; using 0s",
    )


def test_a_manifest_that_changes_is_another_spec() -> None:
    """Its digest names all of it, but not where it goes."""
    first = draw(wrapper(), namespace="team").plan.digest
    other = wrapper()
    other["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["x"] = 1

    assert draw(wrapper(), namespace="elsewhere").plan.digest == first
    assert draw(other, namespace="team").plan.digest != first


def test_what_is_created_is_ours_by_its_labels() -> None:
    """The wrapper belongs to the job's ConfigMap, and each pod knows its job and its place in it."""
    manifest = wrapper(pytorchjob(3))
    before = copy.deepcopy(manifest)
    made = marked(manifest, REF, attempt=4)

    assert manifest == before
    metadata = made["metadata"]
    assert (metadata["namespace"], metadata["labels"][JOB], metadata["annotations"][ATTEMPT]) == ("team", "train", "4")
    assert metadata["ownerReferences"][0]["uid"] == "o1"
    roles = made["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"]
    firsts = {role: roles[role]["template"]["metadata"]["labels"][FIRST] for role in roles}
    assert firsts == {"Master": "0", "Worker": "1"}


def test_the_place_of_a_pod_is_read_from_its_labels() -> None:
    """The operator's index comes on top of where its set begins."""
    labels = {JOB: "train", UID: "u1", PART: "wrapped", FIRST: "1", "training.kubeflow.org/replica-index": "2"}
    found = read_pod(labels)

    assert found is not None
    assert (found.job, found.node, found.attempt) == ("train", 3, 0)
    assert read_pod({**labels, FIRST: "x"}) is None


def test_a_suspended_job_is_created_suspended() -> None:
    """And says that it was us."""
    made = marked(wrapper() | {"spec": {"components": []}}, REF, attempt=1, suspend=True)

    assert (made["spec"]["suspend"], made["metadata"]["annotations"][SUSPENDED]) == (True, "true")


def test_a_pytorchjob_is_wrapped_and_unwrapped() -> None:
    """Its policies and its queue stand on the wrapper where there is one."""
    bare = pytorchjob()
    bare["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "annotations": {PREFIX + "retryLimit": "2"}}
    around = wrapped_in(bare, Kind.APPWRAPPER)

    assert around["metadata"] == {"name": "train", **{key: bare["metadata"][key] for key in ("labels", "annotations")}}
    assert around["spec"]["components"][0]["template"]["metadata"] == {"name": "train"}
    assert wrapped_in(around, Kind.PYTORCHJOB) == bare


@pytest.mark.parametrize(
    ("manifest", "kind", "message"),
    [
        pytest.param({"apiVersion": "v1", "kind": "Pod"}, None, "kind: 'Pod' of API 'v1' is not allowed", id="no job"),
        pytest.param(
            wrapper(pytorchjob(), pytorchjob()),
            Kind.PYTORCHJOB,
            "requires an AppWrapper with exactly one PyTorchJob",
            id="two components",
        ),
        pytest.param(
            wrapper({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}),
            None,
            "contains no pod template",
            id="no pods",
        ),
        pytest.param(wrapper(warmupGracePeriodDuration="1d"), None, "such as 24h", id="days"),
        pytest.param(wrapper(retryLimit="many"), None, "retryLimit", id="no number"),
        pytest.param(
            wrapper() | {"metadata": {"name": "train", "namespace": "theirs"}},
            None,
            "'theirs' is not allowed; expected",
            id="namespace",
        ),
        pytest.param(wrapper() | {"metadata": {"name": "No Name"}}, None, "No Name", id="name"),
        pytest.param(wrapper() | {"spec": {"components": [{}]}}, None, "does not match the schema", id="no template"),
        pytest.param(
            wrapper() | {"spec": {"components": [{"template": pytorchjob(), "podSets": [{"path": "template.nowhere"}]}]}},
            None,
            "the path template.nowhere does not exist",
            id="path",
        ),
    ],
)
def test_what_is_refused(manifest: dict[str, Any], kind: Kind | None, message: str) -> None:
    """A manifest that cannot be a job is refused with the place in it and what is allowed."""
    with pytest.raises(SubmitError, match=message):
        draw(manifest, namespace="team", kind=kind)


def test_a_job_file_as_a_pytorchjob() -> None:
    """Each pod runs an agent that meets the others at the master; the policies are annotations."""
    made = job(nodes="1:3", nproc_per_node=2, args=["--lr", 1], fault_tolerance={"retry_limit": 5})

    roles = made["spec"]["pytorchReplicaSpecs"]
    assert (roles["Master"]["replicas"], roles["Worker"]["replicas"], roles["Worker"]["restartPolicy"]) == (1, 2, "Never")
    command = trainer(made)["command"]
    assert command[:5] == [*run_module("rallypoint.agent", "run", python=("python",))]
    assert command[-3:] == ["train.py", "--lr", "1"]
    told = dict(zip(command[5:-3:2], command[6:-3:2], strict=True))
    assert (told["--nnodes"], told["--nproc-per-node"], told["--rdzv-id"]) == ("1:3", "2", "train")
    assert told["--rdzv-endpoint"] == "$(MASTER_ADDR):$(MASTER_PORT)"
    assert made["metadata"]["annotations"][PREFIX + "retryLimit"] == "5"


def test_a_job_of_one_node_has_no_workers() -> None:
    """Its only pod is the master."""
    assert list(job()["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_the_operator_finds_the_container_and_its_port() -> None:
    """The training operator looks for them by name: without these names it never creates a pod."""
    container = trainer(job(nodes=2, rendezvous={"port": 4000}), "Worker")

    assert (container["name"], container["ports"]) == (
        "pytorch",
        [{"name": "pytorchjob-port", "containerPort": 4000, "protocol": "TCP"}],
    )
    assert trainer(job())["ports"][0]["containerPort"] == 23456


def test_the_operators_own_init_container_may_run_as_root() -> None:
    """The pod says nothing of users, each container of ours does; a pod whose user is given holds for all of its containers."""
    own = {"sidecars": [{"name": "s", "image": "any:1"}], "init_containers": [{"name": "i", "image": "any:1"}]}
    pod = job(nodes=2, **own)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    named = job(nodes=2, pod_security_context={"runAsUser": 1000})["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]

    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    ours = [*pod["initContainers"], *pod["containers"]]
    assert {one["name"]: one["securityContext"]["runAsNonRoot"] for one in ours} == {"i": True, "s": True, "pytorch": True}
    assert (named["securityContext"]["runAsNonRoot"], named["securityContext"]["runAsUser"]) == (True, 1000)


def test_setup_commands_run_before_the_agent() -> None:
    """In one shell that stops at the first error, and becomes the agent."""
    command = trainer(job(setup_commands=["export A=1"]))["command"]

    assert command[:4] == ["sh", "-e", "-c", 'export A=1\nexec "$$@"']
    assert command[5:9] == [*run_module("rallypoint.agent", python=("python",))]


def test_a_pod_in_a_wrapper_needs_nothing_of_our_supervisor() -> None:
    """It mounts no Secret and has none of the labels and queue names by which pods of our own are known."""
    made = job(queue="team-queue", env={"SEED": "1"}, checkpoint_dir="/data", labels={"mine": "yes"})
    template = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]

    assert not any("secret" in volume for volume in template["spec"]["volumes"])
    assert template["metadata"]["labels"] == {"mine": "yes"}
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-queue"
    environment = {variable["name"]: variable.get("value") for variable in trainer(made)["env"]}
    assert (environment["SEED"], environment["RALLYPOINT_CHECKPOINT_DIR"]) == ("1", "/data")


def test_a_job_keeps_its_own_words_in_a_wrapper() -> None:
    """The blueprint of a job file in an AppWrapper holds the job as it was written, and plans all of its nodes."""
    given = load_job({"name": "train", "entrypoint": "train.py", "image": "any:1", "nodes": 3}, based=False)
    blueprint = draw(pytorchjob_of(given), namespace="team", kind=Kind.APPWRAPPER, job=given)

    assert blueprint.job == given
    assert (blueprint.plan.kind, blueprint.plan.max_nodes) == (Kind.APPWRAPPER, 3)
    assert [item["kind"] for item in blueprint.objects] == ["ConfigMap", "Secret", "AppWrapper"]


@pytest.mark.parametrize("kind", [Kind.APPWRAPPER, Kind.PYTORCHJOB])
def test_what_is_created_fits_the_schemas(kind: Kind) -> None:
    """The wrapper of a job file is one that the API server takes, without a field that it would drop."""
    made = draw(job(nodes="1:3", queue="q", setup_commands=["true"], env={"A": "1"}), namespace="team", kind=kind).objects[-1]

    assert problems(made) == []
