"""Jobs with one role as RayJobs and RayClusters: the manifests, and what is read of their status. Without a cluster."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.backends.kubernetes.wrapped import rays
from rallypoint.backends.kubernetes.wrapped.podsets import pod_sets
from rallypoint.job import ElasticJob, load_job
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.plan import Kind
from rallypoint.wire.python import run_module
from tests.crds import problems
from tests.kube.ray_clusters import inner_job

KINDS = (Kind.RAYJOB, Kind.RAYCLUSTER)
RESOURCES = {"cpu": "1500m", "memory": "4Gi", "gpus": 2, "extended": {"example.com/rdma": "1"}}


def job(**fields: Any) -> ElasticJob:
    given = {"name": "digits", "entrypoint": "train.py", "image": "train:1", "nodes": "2:4", **fields}
    return load_job(given, based=False)


def planned(kind: Kind, **fields: Any) -> Blueprint:
    return KubernetesBackend(Access(namespace="team", server="http://127.0.0.1:9")).plan_as(job(**fields), kind)


def made(kind: Kind, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the spec of its Ray cluster."""
    manifest = dict(planned(kind, **fields).objects[-1])
    return manifest, manifest["spec"]["rayClusterSpec"] if kind is Kind.RAYJOB else manifest["spec"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"resources": RESOURCES, "queue": "research", "queue_priority": "high"},
        {"tls": "auto", "env": {"A": "$(B)"}, "labels": {"team": "a"}},
        {"fault_tolerance": {"retry_limit": 3}, "master": {"cpu": "2", "memory": "4Gi"}},
        {"profile": "appwrapper", "nodes": 2},
    ],
    ids=["small", "resources and queue", "tls", "policies", "profile"],
)
def test_the_manifest_is_one_that_kuberay_takes(kind, fields):
    """Each field is in the definition of the kind, with the right type."""
    manifest, _ = made(kind, **fields)

    assert problems(manifest) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_cluster(kind):
    """The head has no CPUs for tasks; each shape of node is one worker group that may have MIN to MAX pods."""
    _, cluster = made(kind, resources=RESOURCES)

    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = cluster["workerGroupSpecs"]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (2, 4, 4)
    params = group["rayStartParams"]
    assert (params["num-cpus"], params["num-gpus"], params["memory"]) == ("2", "2", str(4 * 2**30))
    assert json.loads(json.loads(params["resources"])) == {"example.com/rdma": 1.0, "rallypoint.dev/trainer": 1}
    names = [one["name"] for one in group["template"]["spec"]["containers"]]
    assert names == ["ray-worker"]
    assert "command" not in group["template"]["spec"]["containers"][0]


def test_a_pod_is_never_shared_by_two_nodes():
    """Ray counts whole CPUs, so two nodes of half a CPU would fit into one pod; each uses the only marker of a pod."""
    _, cluster = made(Kind.RAYJOB, resources={"cpu": "500m"})
    (group,) = cluster["workerGroupSpecs"]

    assert group["rayStartParams"] == {
        "num-cpus": "1",
        "num-gpus": "0",
        "resources": json.dumps('{"rallypoint.dev/trainer": 1}'),
    }
    assert inner_job(cluster).roles[0].resources.extended == {"rallypoint.dev/trainer": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_variables_from_secrets_are_those_of_ray(kind):
    """They were left out of all pods; what only an agent in a pod needs stays out."""
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    manifest, cluster = made(kind, pod_env=[token], env={"A": "1"})

    head = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert worker[0]["env"] == [token, {"name": "A", "value": "1"}]
    assert all(token in one["env"] for one in head)
    assert problems(manifest) == []


def test_the_rayjob_is_retried_by_nobody_else():
    """KubeRay neither retries it nor keeps its pods, and needs no submitter pod."""
    manifest, _ = made(Kind.RAYJOB)
    spec = manifest["spec"]

    assert (spec["backoffLimit"], spec["shutdownAfterJobFinishes"], spec["submissionMode"]) == (0, True, "HTTPMode")
    assert shlex.split(spec["entrypoint"]) == [*run_module("rallypoint.backends.ray.cluster", "run", python=("python",))]
    assert "suspend" not in spec


def test_the_entry_point_of_a_rayjob_is_quoted():
    """Ray gives it to a shell: a path with a space worked nowhere, and other characters started programs."""
    python = ["/opt/my env/python; id", "-X", "dev"]
    manifest, _ = made(Kind.RAYJOB, python=python)

    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words == [*run_module("rallypoint.backends.ray.cluster", "run", python=python)]


def test_the_driver_of_a_raycluster_is_a_container_of_its_head():
    """It ends with the job, and is not started again in its pod."""
    _, cluster = made(Kind.RAYCLUSTER)
    head = cluster["headGroupSpec"]["template"]["spec"]

    assert head["restartPolicy"] == "Never"
    assert [one["name"] for one in head["containers"]] == ["ray-head", "trainer"]
    assert head["containers"][1]["command"] == [*run_module("rallypoint.backends.ray.cluster", "run", python=("python",))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_admits_it(kind):
    """It is created suspended, with the label of its queue; Kueue takes the suspension back."""
    manifest, _ = made(kind, queue="research")

    assert manifest["spec"]["suspend"] is True
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_driver_runs(kind):
    """One attempt of the same job; a reference in a variable is not for Kubernetes to expand."""
    _, cluster = made(kind, env={"PLACE": "$(HOME)"}, queue="research", fault_tolerance={"retry_limit": 5})
    inner = inner_job(cluster)

    assert "$$(HOME)" in json.dumps(cluster["headGroupSpec"])
    assert (inner.name, inner.fault_tolerance.retry_limit, str(inner.roles[0].nodes)) == ("digits", 0, "2:4")
    assert (inner.roles[0].env["PLACE"], inner.roles[0].queue, inner.roles[0].image) == ("$(HOME)", "", "")


@pytest.mark.parametrize("kind", KINDS)
def test_its_supervisor_sees_one_node(kind):
    """The driver: the plan is that of one node, without roles and certificates."""
    plan = planned(kind, tls="auto", fault_tolerance={"retry_limit": 4}).plan

    assert (plan.kind, plan.min_nodes, plan.max_nodes, plan.tls, plan.budgets.retry_limit) == (kind, 1, 1, "", 4)
    assert (plan.grace.success_ttl == 0) is (kind is Kind.RAYCLUSTER)


@pytest.mark.parametrize("kind", KINDS)
def test_its_pods_are_counted(kind):
    """The head and each worker group are pod sets, for queues and for labels."""
    manifest, _ = made(kind)

    assert [pods.replicas for pods in pod_sets(manifest)] == [1, 4]
    assert all(pods.template["metadata"]["labels"]["rallypoint.dev/part"] == "wrapped" for pods in pod_sets(manifest))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({"network_policy": "on"}, "network_policy: 'on' is not allowed", id="network policy"),
        pytest.param({"tls": {"secret": "mine"}}, "tls: {secret: mine} is not allowed with backend ray", id="own certificates"),
        pytest.param(
            {"node_group_failover": {"label": "rack"}},
            "roles.trainer.node_group_failover: is not allowed with kind ray",
            id="node groups",
        ),
        pytest.param({"env": {"BIG": "x" * 120_000}}, "at most 100000 bytes are allowed, because", id="a large document"),
        pytest.param({"volumes": [{"name": "a"}, {"name": "a"}]}, "volumes", id="a pod field"),
        pytest.param(
            {"master": {"isolation": "HEAD"}}, "master.isolation: 'HEAD' is not allowed with kind ray", id="isolation"
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_run_there_is_refused(kind, fields, told):
    """At submission, with the field."""
    with pytest.raises(SubmitError) as raised:
        planned(kind, **fields)
    assert told in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_of_these_kinds_are_refused(kind):
    """Only a job file says what the driver runs; and no other manifest becomes one."""
    backend = KubernetesBackend(Access(namespace="team", server="http://127.0.0.1:9"))
    manifest, _ = made(kind)
    pytorch = dict(planned(Kind.PYTORCHJOB, nodes=2).objects[-1])

    with pytest.raises(SubmitError, match="submit a job file"):
        backend.plan_manifest(manifest)
    with pytest.raises(SubmitError, match="allowed only for a job file"):
        backend.plan_manifest(pytorch, kind=kind)


@pytest.mark.parametrize(("asked", "granted"), [(True, {"rayjobs", "rayclusters"}), (False, set())])
def test_the_rights_to_manage_them_are_asked_for(asked, granted):
    """A Role without `--kuberay` grants nothing of KubeRay."""
    rules = [rule for item in rbac("team", kuberay=asked) for rule in item.get("rules", ())]

    assert {name for rule in rules if rule["apiGroups"] == ["ray.io"] for name in rule["resources"]} == granted


# --- The status ------------------------------------------------------------------------------------------------------------

LOST = (
    "Job entrypoint command failed with exit code 7, last available logs (truncated to 20,000 chars):\nstep 3\nValueError: x\n"
)


@pytest.mark.parametrize(
    ("status", "driver"),
    [
        pytest.param({}, rays.Driver(state=NodeState.STARTING), id="new"),
        pytest.param(
            {"jobDeploymentStatus": "Running", "jobStatus": "PENDING"}, rays.Driver(state=NodeState.STARTING), id="pending"
        ),
        pytest.param(
            {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}, rays.Driver(state=NodeState.RUNNING), id="running"
        ),
        pytest.param(
            {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"},
            rays.Driver(state=NodeState.SUCCEEDED, exit_code=0),
            id="succeeded",
        ),
        pytest.param(
            {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": LOST},
            rays.Driver(
                state=NodeState.FAILED,
                exit_code=7,
                reason="AppFailed: ValueError: x",
                log_tail=("step 3", "ValueError: x"),
            ),
            id="failed",
        ),
        pytest.param(
            {"jobDeploymentStatus": "Failed", "jobStatus": "RUNNING", "reason": "JobStatusCheckTimeoutExceeded"},
            rays.Driver(state=NodeState.LOST, reason="JobStatusCheckTimeoutExceeded"),
            id="head lost",
        ),
        pytest.param(
            {"jobDeploymentStatus": "ValidationFailed", "reason": "ValidationFailed", "message": "bad spec"},
            rays.Driver(state=NodeState.FAILED, reason="ValidationFailed: bad spec", kind=FaultKind.START_FAILED),
            id="invalid",
        ),
    ],
)
def test_the_driver_of_a_rayjob(status, driver):
    """As KubeRay's operator tells it."""
    assert rays.rayjob_driver({"status": status}) == driver


def record() -> JobRecord:
    return JobRecord.new(name="digits", uid="u", digest="d", owner="o", now=0.0)


def pod(node: int, state: NodeState, *, present: bool = True) -> NodeSeen:
    return NodeSeen(attempt=0, node=node, incarnation=1, state=state, present=present, host=f"host-{node}")


def test_a_driver_is_present_while_any_pod_is():
    """Its end alone frees nothing: the job is over when the pods of its cluster are gone."""
    ended = rays.Driver(state=NodeState.SUCCEEDED, exit_code=0)
    both = [pod(0, NodeState.RUNNING), pod(1, NodeState.RUNNING)]

    with_pods = rays.node(record(), ended, both, there=True)
    without = rays.node(record(), ended, [], there=True)

    assert with_pods is not None
    assert (with_pods.node, with_pods.state, with_pods.present) == (0, NodeState.SUCCEEDED, True)
    assert without is not None
    assert not without.present


def test_pods_of_a_deleted_cluster_are_waited_for():
    """They still hold their resources."""
    left = rays.node(record(), None, [pod(1, NodeState.RUNNING)], there=False)

    assert left is not None
    assert (left.state, left.deleting, left.present) == (NodeState.ENDING, True, True)
    assert rays.node(record(), None, [pod(1, NodeState.LOST, present=False)], there=False) is None


def test_the_head_of_a_raycluster_is_the_driver():
    """The workers only count as long as they are there; KubeRay replaces a lost head."""
    head = rays.node(record(), None, [pod(1, NodeState.RUNNING), pod(0, NodeState.RUNNING)], there=True)
    lost = rays.node(record(), None, [pod(0, NodeState.LOST, present=False)], there=True)

    assert head is not None
    assert (head.node, head.state, head.host) == (0, NodeState.RUNNING, "host-0")
    assert lost is not None
    assert lost.state is NodeState.STARTING
