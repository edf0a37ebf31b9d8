"""What the fields of a role make of its pods."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.kubernetes.manifests.hosts import Exclusion, without_hosts
from rallypoint.backends.kubernetes.manifests.parts import merge, merge_all
from rallypoint.job.quantity import quantity, write_bytes
from tests.kube.manifests import blueprint_of, coordinator_of, node_of, trainer_of

HOSTS = {"key": "kubernetes.io/hostname", "operator": "NotIn"}


def required(pod):
    return pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


@pytest.mark.parametrize(
    ("resources", "requests", "limits"),
    [
        pytest.param({}, {"memory": "64Mi"}, None, id="nothing asked for"),
        pytest.param(
            {"cpu": 2, "memory": "8Gi"},
            {"cpu": "2", "memory": "8256Mi"},
            {"cpu": "2", "memory": "8256Mi"},
            id="limits as requests",
        ),
        pytest.param(
            {"memory": "8Gi", "memory_limit": "16Gi", "shm": "2Gi"}, {"memory": "10Gi"}, {"memory": "18Gi"}, id="shm in both"
        ),
        pytest.param(
            {"gpus": 8},
            {"memory": "64Mi", "nvidia.com/gpu": "8"},
            {"nvidia.com/gpu": "8"},
            id="GPUs alike",
        ),
        pytest.param(
            {"gpus": 1, "gpu_resource": "amd.com/gpu", "extended": {"rdma/hca": 2}},
            {"memory": "64Mi", "rdma/hca": "2", "amd.com/gpu": "1"},
            {"rdma/hca": "2", "amd.com/gpu": "1"},
            id="other devices",
        ),
    ],
)
def test_what_a_node_asks_for(resources, requests, limits):
    """GPUs are asked for and limited alike; /dev/shm is memory of the pod and counted as such."""
    asked = trainer_of(resources=resources)["resources"]

    assert asked["requests"] == requests
    assert asked.get("limits") == limits


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [("nvidia.com/gpu", "nvidia.com/gpu"), ("ascend-npu", "huawei.com/Ascend910")],
)
def test_devices_are_called_as_their_kind_is(accelerator, name):
    """A job names the kind; the cluster knows it by its vendor's plugin."""
    asked = trainer_of(accelerator=accelerator, resources={"gpus": 4})["resources"]

    assert asked["limits"] == {name: "4"}


def test_shared_memory_is_sized_for_the_workers():
    """Each worker has as much as a container has by itself, and a size that is given is kept."""
    for fields, size in (({"nproc_per_node": 8}, "512Mi"), ({"resources": {"shm": "1.5Gi"}}, "1536Mi")):
        volumes = {volume["name"]: volume for volume in node_of(**fields)["spec"]["volumes"]}
        assert volumes["rallypoint-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_every_writable_path_is_a_volume():
    """The root is read-only: where an agent or a worker writes, there is a volume."""
    trainer = trainer_of()
    writable = {mount["mountPath"] for mount in trainer["volumeMounts"] if not mount.get("readOnly")}

    assert trainer["securityContext"]["readOnlyRootFilesystem"] is True
    assert writable == {"/dev/shm", "/tmp", "/var/run/rallypoint"}


def test_a_user_may_bring_their_own_tmp():
    """Then ours is not there: a path is mounted once."""
    fields: dict[str, Any] = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volume_mounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    for pod in (node_of(**fields), coordinator_of(**fields)):
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        assert [mount["name"] for mount in mounts if mount["mountPath"] == "/tmp"] == ["scratch"]
        assert "rallypoint-tmp" not in [volume["name"] for volume in pod["spec"]["volumes"]]


def test_excluded_hosts_are_in_every_term():
    """The terms of a node affinity are alternatives: one that does not name a bad host would let the pod in there."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, {"matchFields": []}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pod = node_of(affinity=affinity, host_ignore_list=["bad-2"], hosts=("bad-1",))

    assert [term["matchExpressions"][-1] for term in required(pod)] == [{**HOSTS, "values": ["bad-1", "bad-2"]}] * 2
    assert required(pod)[0]["matchExpressions"][0]["key"] == "zone"


def test_excluded_hosts_make_an_affinity_where_there_is_none():
    """And without any, nothing is said."""
    assert required(node_of(hosts=("bad",))) == [{"matchExpressions": [{**HOSTS, "values": ["bad"]}]}]
    assert required(coordinator_of(host_ignore_list=["bad"])) == [{"matchExpressions": [{**HOSTS, "values": ["bad"]}]}]
    assert "affinity" not in node_of()["spec"]


UNREACHABLE = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


def test_pods_leave_a_lost_machine_soon():
    """Nodes and coordinators tolerate a machine that is not ready, or unreachable, for as long as the job says."""
    for pod in (node_of(), coordinator_of(), node_of(health={"node_unreachable": "90s"})):
        found = {one["key"]: one for one in pod["spec"]["tolerations"]}
        assert list(found) == UNREACHABLE
        assert {(one["effect"], one["operator"]) for one in found.values()} == {("NoExecute", "Exists")}
    assert {one["tolerationSeconds"] for one in node_of()["spec"]["tolerations"]} == {30}
    assert {one["tolerationSeconds"] for one in node_of(health={"node_unreachable": "90s"})["spec"]["tolerations"]} == {90}


def test_a_node_knows_whose_end_nobody_saw():
    """It tells its coordinator; one whose predecessor was seen to end has nothing to tell."""

    def told(pod):
        return [one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "RALLYPOINT_UNSEEN"]

    assert (told(node_of(incarnation=3, unseen=2)), told(node_of(incarnation=3))) == (["2"], [])


def test_a_jobs_own_tolerations_of_a_lost_machine_stay():
    """What the job itself says of such a taint holds alone, be it for one of them or for all taints."""
    own = {"key": UNREACHABLE[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
    every = {"operator": "Exists"}
    other = {"key": UNREACHABLE[1], "operator": "Exists", "effect": "NoSchedule"}

    assert [one.get("tolerationSeconds") for one in node_of(tolerations=[own])["spec"]["tolerations"]] == [600, 30]
    assert node_of(tolerations=[every])["spec"]["tolerations"] == [every]
    assert len(node_of(tolerations=[other])["spec"]["tolerations"]) == 3


@given(st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
def test_an_affinity_is_not_changed_in_place(hosts):
    """The job's own affinity is used for every pod; none may leave its hosts in it."""
    affinity: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    without_hosts(affinity, Exclusion(required=frozenset(hosts), preferred=frozenset(hosts)))

    assert affinity == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}


def test_sidecars_start_first_and_end_last():
    """A sidecar is an init container that is kept running, so that it does not keep the pod from ending."""
    pod = node_of(init_containers=[{"name": "fetch", "image": "f"}], sidecars=[{"name": "ship", "image": "s"}])
    started = [(container["name"], container.get("restartPolicy")) for container in pod["spec"]["initContainers"]]

    assert started == [("fetch", None), ("ship", "Always")]
    assert [container["name"] for container in pod["spec"]["containers"]] == ["trainer"]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        pytest.param({}, 25, id="default"),
        pytest.param({"recovery": {"stop_grace_period": "90s"}}, 105, id="workers have longer"),
        pytest.param({"termination_grace_period": "61.5s"}, 62, id="given, in whole seconds"),
    ],
)
def test_a_pod_outlives_the_grace_of_its_workers(fields, seconds):
    """Whoever stops saves first; the pod's own grace must not cut that short."""
    assert node_of(**fields)["spec"]["terminationGracePeriodSeconds"] == seconds


def test_a_template_is_begun_with():
    """What the template says is there, and its container `trainer` is ours; other containers come after it."""
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "proxy", "image": "p"},
                {"name": "trainer", "image": "ignored", "env": [{"name": "A", "value": "1"}], "workingDir": "/app"},
            ],
        },
    }
    pod = node_of(pod_template=template, tolerations=[{"key": "gpu", "operator": "Exists"}], labels={"tier": "batch"})
    trainer, proxy = pod["spec"]["containers"]

    assert pod["metadata"]["labels"].items() >= {"team": "vision", "tier": "batch", "rallypoint.dev/part": "node"}.items()
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]
    assert (trainer["name"], proxy["name"]) == ("trainer", "proxy")
    assert trainer["image"] == "registry.example/train:1"
    assert trainer["workingDir"] == "/app"
    assert [variable["name"] for variable in trainer["env"]] == ["A", "POD_IP", "RALLYPOINT_MACHINE"]


def test_a_template_cannot_take_what_an_agent_needs():
    """Command, arguments and restart policy are ours, and the blueprint says so."""
    template = {"spec": {"restartPolicy": "Always", "containers": [{"name": "trainer", "command": ["sh"], "args": ["-c"]}]}}
    pod = node_of(pod_template=template)
    notes = "\n".join(blueprint_of(pod_template=template).notes)

    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["containers"][0]["command"][0] == "python"
    assert "args" not in pod["spec"]["containers"][0]
    for name in ("containers.trainer.command", "containers.trainer.args", "restartPolicy"):
        assert f"pod_template.spec.{name}: not used" in notes


def test_a_template_may_give_the_image_and_the_memory():
    """What is said there is not asked for again, and /dev/shm is still counted on top."""
    trainer = {"name": "trainer", "image": "other:1", "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "5Gi"}}}
    template = {"spec": {"containers": [trainer]}}
    made = trainer_of(image=None, pod_template=template)

    assert made["image"] == "other:1"
    assert made["resources"] == {"requests": {"memory": "4160Mi"}, "limits": {"memory": "5184Mi"}}
    assert coordinator_of(image=None, pod_template=template)["spec"]["containers"][0]["image"] == "other:1"


def test_a_templates_coordinator_is_only_in_the_coordinators_pod():
    """Each kind of pod takes its own container from the template."""
    template = {"spec": {"containers": [{"name": "coordinator", "env": [{"name": "A", "value": "1"}]}]}}
    coordinator = coordinator_of(pod_template=template)["spec"]["containers"]

    assert [container["name"] for container in node_of(pod_template=template)["spec"]["containers"]] == ["trainer"]
    assert [variable["name"] for variable in coordinator[0]["env"]] == ["A", "POD_IP"]


def test_a_users_security_wins():
    """Whoever must run as root may say so; what they do not say stays as it is."""
    pod = node_of(security_context={"readOnlyRootFilesystem": False}, pod_security_context={"runAsNonRoot": False})

    assert pod["spec"]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": False,
    }
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}}


def test_every_container_has_a_read_only_root_unless_it_says_otherwise():
    """Sidecars, init containers and those of a template too: what runs beside the workers shares their volumes."""
    pod = node_of(
        sidecars=[{"name": "ship", "image": "s"}, {"name": "old", "image": "o", "securityContext": WRITABLE}],
        init_containers=[{"name": "fetch", "image": "f", "securityContext": {"runAsUser": 7}}],
        pod_template={"spec": {"containers": [{"name": "beside", "image": "b"}]}},
    )
    found = {each["name"]: each["securityContext"] for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])}

    assert {name: security["readOnlyRootFilesystem"] for name, security in found.items()} == {
        "trainer": True,
        "ship": True,
        "old": False,
        "fetch": True,
        "beside": True,
    }
    assert found["fetch"]["runAsUser"] == 7


WRITABLE = {"readOnlyRootFilesystem": False}


def test_paths_are_those_of_the_image():
    """A script is relative to the folder that its worker starts in, which the image or `workdir` names."""
    bare, relative, absolute = (blueprint_of(workdir=folder).plan for folder in (None, "src", "/app"))

    assert (bare.workdir, bare.entrypoint) == ("", "train.py")
    assert (relative.workdir, relative.entrypoint) == ("src", "train.py")
    assert (absolute.workdir, absolute.entrypoint) == ("/app", "/app/train.py")


@pytest.mark.parametrize(
    ("folder", "noted"),
    [
        pytest.param("/checkpoints", True, id="in the pod"),
        pytest.param("/data/run-1", False, id="on a volume"),
        pytest.param("s3://bucket/run-1", False, id="an address"),
    ],
)
def test_checkpoints_that_would_be_lost_are_noted(folder, noted):
    """What is written to no volume ends with its pod."""
    fields: dict[str, Any] = {
        "volumes": [{"name": "d", "nfs": {"server": "s", "path": "/"}}],
        "volume_mounts": [{"name": "d", "mountPath": "/data"}],
    }
    notes = blueprint_of(checkpoint_dir=folder, **fields).notes

    assert any(note.startswith("checkpoint_dir: ") for note in notes) is noted


def test_without_a_queue_nothing_is_said_to_kueue():
    """A cluster without Kueue sees no label of it."""
    metadata = node_of()["metadata"]

    assert [key for key in (*metadata["labels"], *metadata.get("annotations", {})) if "kueue" in key] == []


def test_the_base_group_is_min_nodes_and_the_coordinator():
    """They are admitted as one; each node above MIN waits for its own quota."""
    fields: dict[str, Any] = {"nodes": "2:3", "queue": "team-a", "queue_priority": "urgent"}
    base = [coordinator_of(**fields), node_of(node=0, **fields), node_of(node=1, **fields)]
    above = node_of(node=2, **fields)["metadata"]

    for pod in base:
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "digits-01234567"
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert "kueue.x-k8s.io/pod-group-name" not in above["labels"]
    assert "annotations" not in above
    for pod in (*base, {"metadata": above}):
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "urgent"


def test_a_group_outlives_a_reset_and_a_replacement():
    """The group's name knows no attempt, and a pod that keeps off a machine is still of the same shape."""
    fields: dict[str, Any] = {"queue": "team-a"}
    first, later = node_of(**fields), node_of(attempt=2, incarnation=3, hosts=("bad",), **fields)
    group, shape = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/role-hash"

    assert first["metadata"]["labels"][group] == later["metadata"]["labels"][group]
    assert first["metadata"]["annotations"][shape] == later["metadata"]["annotations"][shape] == "node"


def test_kueues_own_label_is_a_queue_too():
    """A job that carries the label already waits in that queue as a group."""
    metadata = node_of(labels={"kueue.x-k8s.io/queue-name": "team-b"})["metadata"]

    assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"] == "digits-01234567"


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="mappings"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="the second wins"),
        pytest.param({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}, id="plain lists are replaced"),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]},
            {"env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]},
            id="lists with a key",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            id="lists that add up",
        ),
    ],
)
def test_templates_merge_as_kubernetes_does(base, over, merged):
    """Mappings by key, lists by their merge key, everything else replaced."""
    assert merge(base, over) == merged


def test_merging_shares_nothing():
    """A pod may be changed without changing the job that it was made of."""
    layer = {"spec": {"containers": [{"name": "a", "env": []}]}}
    merge_all({}, layer)["spec"]["containers"][0]["env"].append(1)

    assert layer == {"spec": {"containers": [{"name": "a", "env": []}]}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("500m", Fraction(1, 2), id="milli"),
        pytest.param("1.5Gi", Fraction(3 * 2**29), id="binary"),
        pytest.param("2", Fraction(2), id="plain"),
        pytest.param("1e3", Fraction(1000), id="exponent"),
        pytest.param("1E", Fraction(10**18), id="exa"),
        pytest.param("1.e-3", Fraction(1, 1000), id="negative exponent"),
    ],
)
def test_quantities_are_exact(text, number):
    """A quantity is read as Kubernetes reads it."""
    assert quantity(text) == number


@given(st.integers(0, 2**70))
def test_bytes_are_written_exactly(number):
    """What is written reads back as the same number of bytes."""
    assert quantity(write_bytes(Fraction(number))) == number


@pytest.mark.parametrize(
    ("node", "fields", "expected"),
    [
        pytest.param(0, {"setup_commands": ["true"]}, None, id="node 0 knows its own address"),
        pytest.param(1, {"setup_commands": ["true"]}, "node-0.digits-01234567", id="the others have its name"),
        pytest.param(1, {}, None, id="nobody asks without setup commands"),
        pytest.param(
            1,
            {"setup_commands": ["true"], "pod_env": [{"name": "MASTER_ADDR", "value": "mine"}]},
            "mine",
            id="the pod's own word",
        ),
    ],
)
def test_setup_commands_find_node_0(node, fields, expected):
    """By a name that is the same in every attempt: its host name under the job's Service."""
    first, own = node_of(node=0, attempt=3, nodes=2, **fields)["spec"], node_of(node=node, nodes=2, **fields)["spec"]
    told = {variable["name"]: variable.get("value") for variable in own["containers"][0]["env"]}

    assert (first["hostname"], first["subdomain"]) == ("node-0", "digits-01234567")
    assert own["hostname"] == f"node-{node}"
    assert told.get("MASTER_ADDR") == expected
