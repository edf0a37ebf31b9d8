"""Jobs with several roles as RayJobs and RayClusters: worker groups, pods, and what cannot run. Without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.wrapped.podsets import pod_sets
from rallypoint.backends.ray.placement import FILE, Placement
from rallypoint.backends.ray.roles import draw_roles
from rallypoint.cli.plan import plan_lines
from rallypoint.job import load_job
from rallypoint.wire import codec
from rallypoint.wire.plan import Kind
from tests.crds import problems
from tests.kube.ray_clusters import inner_job

KINDS = (Kind.RAYJOB, Kind.RAYCLUSTER)

TRAINER: dict[str, Any] = {
    "entrypoint": "train.py",
    "image": "train:1",
    "nodes": "1:3",
    "nproc_per_node": 2,
    "resources": {"cpu": "1500m", "memory": "2Gi", "gpus": 2},
}
ROLLOUT: dict[str, Any] = {
    "launch": "simple",
    "entrypoint": "pkg.rollout:serve",
    "image": "rollout:1",
    "total": 4,
    "per_group": 2,
    "driver": False,
    "instance_resources": {"cpu": "500m", "memory": "1Gi", "gpus": "0.5"},
}
JUDGE: dict[str, Any] = {"launch": "simple", "entrypoint": "judge.py", "image": "judge:1", "instance_resources": {"gpus": 0}}
PAIR = [{"name": "pair", "roles": ["a", "b"]}]


def planned(kind: Kind, roles: dict[str, dict[str, Any]], **fields: Any) -> Blueprint:
    job = load_job({"name": "rl", "roles": roles, **fields}, based=False)
    return KubernetesBackend(Access(namespace="team", server="http://127.0.0.1:9")).plan_as(job, kind)


def made(roles: dict[str, dict[str, Any]], *, kind: Kind = Kind.RAYJOB, **fields: Any) -> dict[str, Any]:
    """Return the spec of the Ray cluster of a job, which KubeRay takes."""
    manifest = dict(planned(kind, roles, **fields).objects[-1])
    assert problems(manifest) == []
    spec: dict[str, Any] = manifest["spec"]["rayClusterSpec"] if kind is Kind.RAYJOB else manifest["spec"]
    return spec


def groups(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def numbers(group: dict[str, Any]) -> tuple[int, int, int]:
    return group["minReplicas"], group["replicas"], group["maxReplicas"]


def container(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = group["template"]["spec"]["containers"][0]
    return found


def there(group: dict[str, Any]) -> dict[str, float]:
    """Return what Ray is told that a pod has."""
    params = group["rayStartParams"]
    named = {"CPU": params["num-cpus"], "GPU": params["num-gpus"], "memory": params.get("memory", "0")}
    found = {name: float(value) for name, value in named.items()}
    return {**found, **json.loads(json.loads(params["resources"]))}


def refused(kind: Kind, roles: dict[str, dict[str, Any]], **fields: Any) -> str:
    with pytest.raises(SubmitError) as raised:
        planned(kind, roles, **fields)
    return str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_each_role_has_a_worker_group(kind):
    """MIN to MAX pods for the nodes of an elastic role, one pod for each group of instances, and a head without CPUs."""
    cluster = made({"trainer": TRAINER, "rollout": ROLLOUT, "judge": JUDGE}, kind=kind)
    found = groups(cluster)

    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    assert {name: numbers(group) for name, group in found.items()} == {
        "trainer": (1, 3, 3),
        "rollout": (2, 2, 2),
        "judge": (1, 1, 1),
    }
    assert {name: container(group)["image"] for name, group in found.items()} == {
        "trainer": "train:1",
        "rollout": "rollout:1",
        "judge": "judge:1",
    }
    assert {name: there(group) for name, group in found.items()} == {
        "trainer": {"CPU": 2, "GPU": 2, "memory": 2 * 2**30, "rallypoint.dev/trainer": 1},
        "rollout": {"CPU": 1, "GPU": 1, "memory": 2 * 2**30, "rallypoint.dev/rollout": 1},
        "judge": {"CPU": 1, "GPU": 0, "memory": 0, "rallypoint.dev/judge": 1},
    }


def test_a_pod_requests_what_its_instances_need():
    """The sums over the instances of a group; Ray divides a device that Kubernetes counts as a whole."""
    rollout = {**ROLLOUT, "resources": {"shm": "1Gi", "cpu_limit": "2", "extended": {"example.com/rdma": "1"}}}
    user = {"example.com/fpga": 1, "slots": 2}
    rollout["instance_resources"] = {**ROLLOUT["instance_resources"], "disk": "1Gi", "user_defined": user}
    found = groups(made({"judge": JUDGE, "rollout": rollout}))

    amounts = {"memory": "4Gi", "nvidia.com/gpu": "1", "example.com/rdma": "1", "example.com/fpga": "2"}
    assert container(found["rollout"])["resources"] == {
        "requests": {"cpu": "1", "ephemeral-storage": "2Gi", **amounts},
        "limits": {"cpu": "4", "ephemeral-storage": "2Gi", **amounts},
    }
    assert there(found["rollout"])["slots"] == 4
    assert container(found["judge"])["resources"] == {"requests": {"memory": "64Mi"}}


MANY: dict[str, dict[str, Any]] = {
    "several": {"roles": {"trainer": TRAINER, "rollout": ROLLOUT, "judge": JUDGE}},
    "half": {
        "roles": {"trainer": {**TRAINER, "resources": {}, "nodes": 2, "instance_resources": {"gpus": "0.5", "cpu": "100m"}}}
    },
    "shared": {
        "roles": {
            "a": {**JUDGE, "total": 6, "per_group": 3, "instance_resources": {"gpus": "1/3", "cpu": "100m"}},
            "b": {**JUDGE, "total": 2, "instance_resources": {"memory": "1Gi"}},
        },
        "groups": PAIR,
    },
    "elastic in a group": {
        "roles": {
            "a": {
                **TRAINER,
                "image": "x",
                "nodes": 2,
                "nproc_per_node": 1,
                "resources": {},
                "instance_resources": {"cpu": "2"},
            },
            "b": {**JUDGE, "image": "x", "total": 2, "instance_resources": {}},
        },
        "groups": PAIR,
    },
    "isolated": {"roles": {"a": JUDGE, "b": {**ROLLOUT, "driver": True}}, "worker_isolation": "WORKER"},
    "whole job": {
        "roles": {"a": JUDGE, "b": {**TRAINER, "nodes": 2}},
        "profile": "appwrapper",
        "tls": "auto",
        "config": {"lr": "1e-5"},
        "rpc": {"pickle": True},
        "cluster": {"nodes": 3, "devices_per_node": 2},
    },
    "equal": {"roles": {"a": JUDGE, "b": {**JUDGE, "total": 3}, "c": TRAINER}},
}


@pytest.mark.parametrize("fields", MANY.values(), ids=MANY.keys())
def test_each_bundle_has_a_pod_of_its_own(fields):
    """Each bundle of the smallest world fits into one pod of one worker group, and no second one fits beside it."""
    cluster = made(**fields)
    job = inner_job(cluster)
    placement = codec.loads(Placement, draw_roles(job, namespace="x", runtime_env={}).attached[FILE])
    free = {name: numbers(group)[0] for name, group in groups(cluster).items()}
    pods = {name: there(group) for name, group in groups(cluster).items()}

    for bundle in placement.group:
        fitting = [name for name, pod in pods.items() if all(pod.get(key, 0) >= value for key, value in bundle.ask.items())]
        assert len(fitting) == 1
        (name,) = fitting
        marker = next(key for key in pods[name] if key.startswith("rallypoint.dev/"))
        assert bundle.ask[marker] == pods[name][marker]
        free[name] -= 1
    assert set(free.values()) == {0}
    for spot in placement.elastic.values():
        assert any(all(pod.get(key, 0) >= value for key, value in spot.ask.items()) for pod in pods.values())


def test_roles_with_equal_pods_share_a_worker_group():
    """Its name is that of the first of them; each instance still has a pod of its own."""
    server = {**JUDGE, "entrypoint": "server.py", "total": 3, "driver": False}
    found = groups(made({"judge": JUDGE, "server": server, "other": {**JUDGE, "env": {"A": "1"}}}))

    assert {name: numbers(group) for name, group in found.items()} == {"judge": (4, 4, 4), "other": (1, 1, 1)}


def test_a_pod_of_one_role_is_none_of_two():
    """Two roles use two markers of a pod, so neither fits into the pods of the other worker group, however equal they are."""
    half = {**JUDGE, "instance_resources": {"cpu": "1", "gpus": 0}}
    cluster = made({"a": half, "b": half, "c": {**half, "total": 2, "per_group": 2}}, groups=PAIR)
    pair, alone = cluster["workerGroupSpecs"]

    assert pair["template"]["spec"] == alone["template"]["spec"]
    assert (there(pair)["rallypoint.dev/pair"], there(alone)["rallypoint.dev/c"]) == (2, 1)


def test_processes_start_in_the_folder_of_their_role():
    """Ray itself starts in that of the image: roles of one pod may have different folders, and a relative one counts once."""
    cluster = made({"a": {**JUDGE, "workdir": "src"}, "b": {**TRAINER, "workdir": "/src"}}, kind=Kind.RAYCLUSTER)

    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    assert not any("workingDir" in one for pod in pods for one in pod["spec"]["containers"])
    assert [role.workdir for role in inner_job(cluster).roles] == ["src", "/src"]


def test_roles_of_a_group_share_their_pods():
    """Each has its fields in the one container of the pod; a variable that not all of them have is not there."""
    one = {
        **JUDGE,
        "total": 2,
        "env": {"ALL": "1", "OWN": "a"},
        "node_selector": {"zone": "a"},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "pod_env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "instance_resources": {"cpu": "1", "memory": "1Gi"},
    }
    other = {
        **JUDGE,
        "total": 4,
        "per_group": 2,
        "env": {"ALL": "1", "OWN": "b", "MORE": "1"},
        "node_selector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "host_ignore_list": ["bad-1"],
        "labels": {"tier": "b"},
        "termination_grace_period": "5m",
        "instance_resources": {"cpu": "1", "gpus": "0.25"},
    }
    (group,) = made({"a": one, "b": other}, groups=PAIR)["workerGroupSpecs"]
    spec = group["template"]["spec"]

    assert (group["groupName"], numbers(group)) == ("pair", (2, 2, 2))
    assert spec["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert spec["terminationGracePeriodSeconds"] == 300
    assert {"operator": "Exists"} in spec["tolerations"]
    assert "bad-1" in json.dumps(spec["affinity"])
    assert group["template"]["metadata"]["labels"]["tier"] == "b"
    assert container(group)["env"] == [*one["pod_env"], {"name": "ALL", "value": "1"}]
    assert {"name": "data", "mountPath": "/data"} in container(group)["volumeMounts"]
    # One of both names no memory, so the pod has no limit of it.
    requests = {"cpu": "3", "memory": "1216Mi", "nvidia.com/gpu": "1"}
    assert container(group)["resources"] == {"requests": requests, "limits": {"cpu": "3", "nvidia.com/gpu": "1"}}
    assert there(group)["rallypoint.dev/pair"] == 2


def test_the_job_inside_is_that_of_the_document():
    """Roles, groups and variables stay; what only pods have does not, and no reference is for Kubernetes to expand."""
    roles = {"a": {**JUDGE, "env": {"PLACE": "$(HOME)"}}, "b": {**JUDGE, "queue": "q", "host_ignore_list": ["x"]}}
    cluster = made(roles, groups=PAIR, fault_tolerance={"retry_limit": 2})
    job = inner_job(cluster)

    assert "$$(HOME)" in json.dumps(cluster["headGroupSpec"])
    assert [role.name for role in job.roles] == ["a", "b"]
    assert (job.roles[0].env, job.groups[0].name) == ({"PLACE": "$(HOME)"}, "pair")
    assert [(role.image, role.queue, role.host_ignore_list) for role in job.roles] == [("", "", ())] * 2
    # The budget of an elastic role within one attempt: the driver itself makes no second attempt.
    assert job.fault_tolerance.retry_limit == 2


@pytest.mark.parametrize("kind", KINDS)
def test_its_supervisor_sees_the_driver(kind):
    """One node, whatever the roles are; the head and each worker group are the pod sets of the job."""
    blueprint = planned(kind, {"trainer": TRAINER, "rollout": ROLLOUT, "judge": JUDGE}, fault_tolerance={"retry_limit": 4})
    plan = blueprint.plan

    assert (plan.kind, plan.min_nodes, plan.max_nodes, plan.roles, plan.budgets.retry_limit) == (kind, 1, 1, (), 4)
    assert [pods.replicas for pods in pod_sets(blueprint.objects[-1])] == [1, 3, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_shows_the_roles(kind):
    """And the object that is made of them."""
    lines = list(plan_lines(planned(kind, {"trainer": TRAINER, "rollout": ROLLOUT})))

    assert lines[0] == "Job rl: 2 roles, profile ladder"
    assert any("rollout: 4 instances, 2 per group" in line for line in lines)
    assert any(line.strip() == ("RayJob rl" if kind is Kind.RAYJOB else "RayCluster rl") for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_admits_all_roles_together(kind):
    """A role that names no queue has that of the others."""
    roles = {"trainer": TRAINER, "rollout": {**ROLLOUT, "queue": "research", "queue_priority": "high"}}
    manifest = dict(planned(kind, roles).objects[-1])

    assert manifest["spec"]["suspend"] is True
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert problems(manifest) == []


def test_the_head_runs_the_image_of_the_first_role():
    """The driver, too, and with the Python of this role."""
    first = {**JUDGE, "python": ["/opt/python"], "service_account": "judges"}
    cluster = made({"none": {**JUDGE, "total": 0}, "judge": first, "trainer": TRAINER}, kind=Kind.RAYCLUSTER)
    head = cluster["headGroupSpec"]["template"]["spec"]

    assert [one["image"] for one in head["containers"]] == ["judge:1", "judge:1"]
    assert head["containers"][1]["command"][0] == "/opt/python"
    assert head["serviceAccountName"] == "judges"
    assert list(groups(cluster)) == ["judge", "trainer"]


def test_a_role_named_head_does_not_disturb_the_queue():
    """Kueue keeps that name for the pod set of the head."""
    cluster = made({"head": JUDGE, "head-g": {**JUDGE, "image": "y"}, "z": {**JUDGE, "image": "z"}})

    assert list(groups(cluster)) == ["head-g-g", "head-g", "z"]
    assert inner_job(cluster).roles[0].resources.extended == {"rallypoint.dev/head-g-g": "1"}


def different(number: int) -> dict[str, dict[str, Any]]:
    return {f"role-{index}": {**JUDGE, "image": f"image:{index}"} for index in range(number)}


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_seven_worker_groups(kind):
    """With the head, they are the eight pod sets that Kueue takes."""
    assert len(made(different(7), kind=kind)["workerGroupSpecs"]) == 7

    told = refused(kind, different(8))
    assert told.startswith("roles: 8 worker groups of a Ray cluster (role-0, role-1,")
    assert "expected at most 7" in told
    assert "(role-0, role-1, role-2, role-3, role-4, role-5, role-6, role-7, ...)" in refused(kind, different(9))
    assert len(made({f"role-{index}": JUDGE for index in range(100)}, kind=kind)["workerGroupSpecs"]) == 1


IN_GROUP = [
    pytest.param({"image": "x"}, "roles.b.image: 'x' is not allowed; expected the same as image of role a,", id="image"),
    pytest.param({"pod_template": {"spec": {"hostNetwork": True}}}, "", id="a field of one role"),
    pytest.param(
        {"labels": {"team": "b"}}, "roles.b.labels.team: 'b' is not allowed; expected the same as labels.team of", id="label"
    ),
    pytest.param(
        {"volumes": [{"name": "data", "hostPath": {"path": "/b"}}]},
        "roles.b.volumes: 'data' is not allowed; expected the same as volumes 'data' of role a, with which it shares pods",
        id="volume",
    ),
    pytest.param(
        {"pod_env": [{"name": "A", "value": "b"}]},
        "roles.b.pod_env: 'A' is not allowed; expected the same as pod_env 'A' of role a",
        id="variable",
    ),
    pytest.param({"service_account": "b"}, "roles.b.service_account: 'b' is not allowed", id="account"),
    pytest.param(
        {"resources": {"gpu_resource": "amd.com/gpu"}},
        "roles.b.resources.gpu_resource: 'amd.com/gpu' is not allowed; expected the same as resources.gpu_resource of role a",
        id="device",
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("second", "told"), IN_GROUP)
def test_roles_of_a_group_agree_about_their_pods(kind, second, told):
    """Both values are named, with the role that has the other."""
    half = {**JUDGE, "instance_resources": {"gpus": "0.5"}}
    first = {
        **half,
        "labels": {"team": "a"},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "pod_env": [{"name": "A", "value": "a"}],
        "service_account": "a",
    }
    roles = {"a": first, "b": {**half, **second}}
    if not told:
        assert made(roles, kind=kind, groups=PAIR)["workerGroupSpecs"][0]["template"]["spec"]["hostNetwork"] is True
        return
    assert told in refused(kind, roles, groups=PAIR)


@pytest.mark.parametrize(
    ("roles", "fields", "told"),
    [
        pytest.param(
            {"a": JUDGE, "b": {"launch": "simple", "entrypoint": "b.py"}}, {}, "roles.b.image: is missing", id="no image"
        ),
        pytest.param(
            {"a": {**JUDGE, "queue": "one"}, "b": {**JUDGE, "queue": "two"}},
            {},
            "roles.b.queue: 'two' is not allowed",
            id="queues",
        ),
        pytest.param(
            {"a": {**TRAINER, "resources": {}}, "b": {**JUDGE, "image": "train:1"}},
            {"groups": PAIR},
            "roles.a.nodes: '1:3' is not allowed; expected one number of nodes",
            id="a range in a group",
        ),
        pytest.param({"a": JUDGE, "b": TRAINER}, {"network_policy": "on"}, "network_policy: 'on' is not allowed", id="policy"),
        pytest.param(
            {"a": JUDGE, "b": TRAINER}, {"master": {"isolation": "M"}}, "master.isolation: 'M' is not", id="isolation"
        ),
        pytest.param({"a": JUDGE, "b": TRAINER}, {"tls": {"secret": "mine"}}, "tls: {secret: mine} is not allowed", id="tls"),
        pytest.param(
            {"a": {**JUDGE, "env": {"BIG": "x" * 120_000}}, "b": TRAINER}, {}, "at most 100000 bytes are allowed", id="large"
        ),
        pytest.param(
            {"a": JUDGE, "b": {**TRAINER, "node_group_failover": {"label": "rack"}}},
            {},
            "roles.b.node_group_failover: is not allowed with kind ray",
            id="node groups",
        ),
        pytest.param(
            {"a": JUDGE, "b": {**JUDGE, "workdir": "~/x", "node_selector": {"!": "x"}}}, {}, "roles.b.workdir: '~/x'", id="path"
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_run_there_is_refused(kind, roles, fields, told):
    """At submission, with the field of the role."""
    assert told in refused(kind, roles, **fields)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {"instance_resources": {"gpus": "1/3", "cpu": "1n", "memory": "1"}},
        {"instance_resources": {"gpus": 0, "user_defined": {"a:b": 1e-9, "x/y": 1e9}}},
        {"instance_resources": {"gpus": 131_000}, "total": 1},
        {"resources": {"extended": {"hugepages-2Mi": "1Gi", "ephemeral-storage": "1E"}}},
        {"env": {"A": "$(POD_IP) $$b", "POD_IP": "x", "Q": "'\"\n\u2028"}},
        {"args": ["$(A)", "$$(A) $$$$", "'; id", "\u202e"]},
        {"total": 9_999, "per_group": 9_999},
    ],
    ids=["tiny", "names", "many devices", "bytes", "variables", "arguments", "one large group"],
)
def test_odd_values_are_kept(kind, fields):
    """The manifest is one that KubeRay takes, and the job inside has the values."""
    cluster = made({"a": {**JUDGE, **fields}, "b": TRAINER}, kind=kind)
    found = load_job({"name": "rl", "roles": {"a": {**JUDGE, **fields}, "b": TRAINER}}, based=False).roles[0]
    kept = inner_job(cluster).roles[0]

    assert (kept.env, kept.args, kept.total, kept.instance_resources) == (
        found.env,
        found.args,
        found.total,
        found.instance_resources,
    )
    assert {**kept.resources.extended, **found.resources.extended} == dict(kept.resources.extended)
