"""From a job to the manifests of its objects."""

from __future__ import annotations

import base64
import json
from typing import Any

import kubernetes_validate
import pytest

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels, read_pod, selector
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob
from rallypoint.job.document import read_yaml
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.python import run_module
from tests.kube.manifests import IMAGE, REF, blueprint_of, coordinator_of, node_of, objects_of, trainer_of, unrestricted

#: Everything at once that a role can say of its pods.
RICH: dict[str, Any] = {
    "nodes": "2:4",
    "nproc_per_node": 2,
    "resources": {
        "cpu": 4,
        "cpu_limit": 8,
        "memory": "8Gi",
        "memory_limit": "16Gi",
        "shm": "2Gi",
        "gpus": 2,
        "extended": {"rdma/hca": 1},
    },
    "image_pull_policy": "IfNotPresent",
    "python": ["/opt/python/bin/python", "-X", "dev"],
    "env": {"EPOCHS": 3},
    "pod_env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    "env_from": [{"configMapRef": {"name": "nccl"}}],
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "conf", "configMap": {"name": "c"}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}, {"name": "conf", "mountPath": "/conf", "readOnly": True}],
    "init_containers": [{"name": "fetch", "image": "fetch:1", "command": ["fetch"]}],
    "sidecars": [{"name": "ship", "image": "ship:1"}],
    "service_account": "trainer",
    "coordinator_service_account": "rallypoint-coordinator",
    "image_pull_secrets": ["registry"],
    "priority_class": "high",
    "scheduler_name": "bin-packer",
    "host_ignore_list": ["bad-1"],
    "queue": "team-a",
    "queue_priority": "urgent",
    "termination_grace_period": "2m",
    "security_context": {"runAsUser": 1234},
    "pod_security_context": {"fsGroup": 1234},
    "pod_template": {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/note": "two words"}},
        "spec": {"runtimeClassName": "nvidia", "containers": [{"name": "trainer", "workingDir": "/app"}]},
    },
    "labels": {"tier": "batch"},
}


def schema_errors(item: dict[str, Any], version: str) -> list[str]:
    """Return the error of an object that is invalid in a version of Kubernetes, or nothing."""
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{item['kind']} {item['metadata']['name']}: {error}"]
    return []


@pytest.mark.parametrize("version", ["1.32", "1.36"])
@pytest.mark.parametrize("fields", [pytest.param({}, id="bare"), pytest.param(RICH, id="rich")])
def test_every_manifest_is_valid(fields, version):
    """Each object of a job has the fields of its kind and no others, in two versions of Kubernetes."""
    objects = objects_of(**fields)

    assert {"ConfigMap", "Pod", "Secret"} <= {item["kind"] for item in objects}
    assert [wrong for item in objects for wrong in schema_errors(item, version)] == []


def test_the_validation_finds_what_is_wrong():
    """An unknown field of a pod fails that test: strict means strict."""
    pod = node_of()
    pod["spec"]["containers"][0]["comand"] = ["python"]

    (error,) = schema_errors(pod, "1.36")
    assert "comand" in error


@pytest.mark.parametrize("fields", [pytest.param({}, id="bare"), pytest.param(RICH, id="rich")])
def test_a_restricted_namespace_accepts_every_pod(fields):
    """Without a word of the user, each pod keeps to the strictest of Kubernetes' pod security standards."""
    pods = [item for item in objects_of(**fields) if item["kind"] == "Pod"]

    assert len(pods) >= 2
    assert [wrong for pod in pods for wrong in unrestricted(pod)] == []


def test_the_objects_come_in_the_order_of_their_creation():
    """What a pod needs is there before it, and the job before everything."""
    found = [(item["kind"], item["metadata"]["name"]) for item in objects_of(nodes="1:2")]

    assert found == [
        ("ConfigMap", "rallypoint-digits"),
        ("ConfigMap", "digits-01234567-status"),
        ("Service", "digits-01234567"),
        ("Secret", "digits-01234567-a1"),
        ("Pod", "digits-01234567-c1"),
        ("Pod", "digits-01234567-a1-n0-1"),
        ("Pod", "digits-01234567-a1-n1-1"),
    ]


def test_the_jobs_configmap_owns_everything_else():
    """Whoever deletes it deletes the job; it belongs to nobody itself."""
    job, *others = objects_of()

    assert "ownerReferences" not in job["metadata"]
    for item in others:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", "rallypoint-digits", REF.owner)


def test_the_jobs_configmap_reads_back():
    """Job, plan and record are in it as they were."""
    drawn = blueprint_of(**RICH)
    job = objects_of(**RICH)[0]

    assert ElasticJob.model_validate(read_yaml(job["data"]["job.yaml"])) == drawn.job
    assert codec.loads(Plan, job["data"]["plan.json"]) == drawn.plan
    assert codec.loads(JobRecord, job["data"]["record.json"]).name == "digits"


def test_the_token_is_in_the_secret_and_nowhere_else():
    """No label, variable, argument or record has what the pods of an attempt know each other by."""
    drawn = blueprint_of(**RICH)
    items = objects_of(**RICH)
    (secret,) = [item for item in items if item["kind"] == "Secret"]
    # The placeholder of the blueprint takes the place of a drawn token; the uid that it also stands for is another one here.
    token = base64.b64decode(secret["data"]["secret"]).decode()

    assert token
    assert base64.b64decode(secret["data"]["plan.json"]).decode() == codec.dumps(drawn.plan)
    others = json.dumps([item for item in items if item is not secret])
    assert token not in others
    assert secret["data"]["secret"] not in others


@pytest.mark.parametrize("pod", [pytest.param(node_of, id="node"), pytest.param(coordinator_of, id="coordinator")])
def test_pods_mount_the_secret_of_their_own_attempt(pod):
    """A pod of an attempt whose Secret is gone cannot start, however late it is created."""
    volumes = {volume["name"]: volume for volume in pod(attempt=3)["spec"]["volumes"]}

    assert volumes["rallypoint-secret"]["secret"]["secretName"] == "digits-01234567-a3"


def test_a_nodes_command_line_is_that_of_an_agent():
    """The agent learns who it is by arguments, what it does from mounted files, its address from the downward API."""
    trainer = trainer_of(node=2, attempt=3, incarnation=4, nodes=4)

    assert trainer["command"] == [
        *run_module("rallypoint.agent", "node", python=("python",)),
        *("--plan", "/etc/rallypoint/plan.json", "--secret-file", "/etc/rallypoint/secret"),
        *("--attempt", "3", "--node", "2", "--incarnation", "4", "--dir", "/var/run/rallypoint", "--shm", "/dev/shm"),
        *("--host", "$(POD_IP)", "--listen", "29610", "--output", "pod"),
    ]
    assert trainer["env"] == [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "RALLYPOINT_MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


def test_a_coordinators_command_line_names_its_configmaps():
    """The coordinator knows the record that it looks at, the status that it writes, and the last one that is known."""
    coordinator = coordinator_of(attempt=2, term=5)["spec"]["containers"][0]

    assert coordinator["command"] == [
        *run_module("rallypoint.agent", "coordinator", python=("python",)),
        *("--plan", "/etc/rallypoint/plan.json", "--secret-file", "/etc/rallypoint/secret"),
        *("--uid", "0123456789abcdef", "--attempt", "2", "--term", "5", "--host", "$(POD_IP)"),
        *("--status-configmap", "team-a/digits-01234567-status", "--record-configmap", "team-a/rallypoint-digits"),
        *("--status-dir", "/var/run/rallypoint", "--known-status", "/etc/rallypoint-status/status.json"),
    ]


@pytest.mark.parametrize(
    ("fields", "port"),
    [
        pytest.param({}, 29620, id="nobody says where"),
        pytest.param({"health": {"metrics_port": 9100}}, 9100, id="named"),
        pytest.param({"health": {"metrics_port": 0}}, None, id="off"),
    ],
)
def test_a_coordinators_metrics_can_be_found(fields, port):
    """By the name of the port, for an operator; by the usual annotations, for everybody else."""
    pod = coordinator_of(**fields)
    ports = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
    said = {key: text for key, text in pod["metadata"].get("annotations", {}).items() if key.startswith("prometheus.io/")}

    assert ports == {"coordinator": 29600, **({} if port is None else {"metrics": port})}
    named = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}
    assert said == ({} if port is None else named)


def test_only_a_coordinator_is_restarted_in_its_pod():
    """A node that ends is judged by the supervisor; a coordinator's process may simply start again."""
    assert node_of()["spec"]["restartPolicy"] == "Never"
    assert coordinator_of()["spec"]["restartPolicy"] == "OnFailure"


def test_a_coordinator_needs_neither_gpus_nor_claims_nor_sidecars():
    """It runs where the nodes may, with their image and their Python, and takes nothing that they need."""
    pod = coordinator_of(**RICH)
    (container,) = pod["spec"]["containers"]

    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "initContainers" not in pod["spec"]
    assert {"data", "rallypoint-shm"}.isdisjoint(volume["name"] for volume in pod["spec"]["volumes"])
    assert {"/data", "/dev/shm"}.isdisjoint(mount["mountPath"] for mount in container["volumeMounts"])
    assert container["image"] == IMAGE
    assert container["command"][0] == "/opt/python/bin/python"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert pod["spec"]["serviceAccountName"] == "rallypoint-coordinator"


def test_a_claim_that_holds_the_python_is_mounted_in_the_coordinator_too():
    """Without it the coordinator could not start."""
    fields: dict[str, Any] = {
        "python": ["/env/bin/python"],
        "volumes": [{"name": "env", "persistentVolumeClaim": {"claimName": "env"}}],
        "volume_mounts": [{"name": "env", "mountPath": "/env"}],
    }
    (container,) = coordinator_of(**fields)["spec"]["containers"]

    assert "/env" in [mount["mountPath"] for mount in container["volumeMounts"]]


@pytest.mark.parametrize(
    ("fields", "account", "named"),
    [
        pytest.param({}, "", None, id="nobody names one"),
        pytest.param({}, "found", "found", id="found in the cluster"),
        pytest.param({"service_account": "pods"}, "found", "pods", id="that of the pods"),
        pytest.param({"service_account": "pods", "coordinator_service_account": "own"}, "", "own", id="its own"),
    ],
)
def test_the_coordinators_service_account(fields, account, named):
    """The job's word comes first; a name that nobody gave is not made up, or the API server would refuse the pod."""
    spec = coordinator_of(account=account, **fields)["spec"]

    assert spec.get("serviceAccountName") == named
    assert spec["automountServiceAccountToken"] is (named is not None)


@pytest.mark.parametrize(
    ("account", "mounted"), [pytest.param(None, False, id="none"), pytest.param("trainer", True, id="named")]
)
def test_a_node_has_a_token_only_where_an_account_is_named(account, mounted):
    """User code cannot speak to the API server unless somebody wants it to."""
    spec = node_of(service_account=account)["spec"]

    assert spec["automountServiceAccountToken"] is mounted


def test_labels_tell_what_a_pod_is():
    """What is written is read again; the coordinator is node -1, with its term as incarnation."""
    node, coordinator = node_of(node=1, attempt=2, incarnation=3, nodes=2), coordinator_of(attempt=2, term=7)
    seen = read_pod(node["metadata"]["labels"])
    other = read_pod(coordinator["metadata"]["labels"])

    assert seen is not None
    assert other is not None
    assert (seen.job, seen.uid, seen.part) == ("digits", REF.uid, Part.NODE)
    assert (seen.attempt, seen.node, seen.incarnation) == (2, 1, 3)
    assert (other.part, other.attempt, other.node, other.incarnation) == (Part.COORDINATOR, 2, -1, 7)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({}, id="none"),
        pytest.param(labels(REF, Part.SECRET, attempt=1), id="no pod"),
        pytest.param(labels(REF, Part.NODE, attempt=1, node=0), id="one missing"),
        pytest.param({**labels(REF, Part.NODE, attempt=1, node=0, incarnation=1), "rallypoint.dev/node": "x"}, id="no number"),
    ],
)
def test_what_nobody_of_ours_labelled_is_nobodys_pod(found):
    """A pod with labels that do not fit is not counted for a job."""
    assert read_pod(found) is None


def test_selectors_find_a_job_or_all_jobs():
    """One selector for the watch of all jobs, one for what is left of one."""
    assert selector() == "rallypoint.dev/job"
    assert selector(REF) == "rallypoint.dev/job=digits,rallypoint.dev/uid=0123456789abcdef"
    assert selector(part=Part.JOB) == "rallypoint.dev/job,rallypoint.dev/part=job"


def test_a_service_begins_with_a_letter():
    """A job's name may begin with a digit, a Service's may not."""
    assert names.service(JobRef(name="7b", uid="0123456789abcdef", namespace="n")) == "j7b-01234567"
