"""The pods and objects of a job with several roles on Kubernetes."""

from __future__ import annotations

import base64
import json
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.backend import draw
from rallypoint.backends.kubernetes.labels import JOB, PARENT, TOGETHER, UID
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.blueprint import serving
from rallypoint.backends.kubernetes.roles.layout import group_of, groups
from rallypoint.job import load_job
from rallypoint.job.compile_roles import compile_roles
from rallypoint.job.placement import counts
from rallypoint.wire.python import run_module
from tests.kube.manifests import IMAGE, unrestricted

GROUP, TOTAL, SHAPE = (f"kueue.x-k8s.io/{name}" for name in ("pod-group-name", "pod-group-total-count", "role-hash"))

TRAINER = {"launch": "elastic", "entrypoint": "train.py", "nodes": "1:2", "nproc_per_node": 2}
ROLLOUT = {"launch": "simple", "entrypoint": "m:serve", "total": 2, "driver": False}


def role(kind: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"image": IMAGE, **kind, **fields}


def drawn(roles: dict[str, Any], **fields: Any) -> Blueprint:
    return draw(load_job({"name": "rl", "roles": roles, **fields}, based=False), namespace="team-a")


def refused(roles: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(SubmitError) as caught:
        drawn(roles, **fields)
    return str(caught.value)


def pods(blueprint: Blueprint, part: str = "unit") -> list[dict[str, Any]]:
    found = [one for one in blueprint.objects if one["kind"] == "Pod"]
    return [one for one in found if one["metadata"]["labels"]["rallypoint.dev/part"] == part]


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


def asked(container: dict[str, Any], name: str) -> str:
    return str(container["resources"].get("requests", {}).get(name, ""))


def test_each_instance_has_a_pod_and_an_elastic_role_is_a_job_of_its_own():
    """It has its own coordinator and nodes; all objects are the job's."""
    blueprint = drawn({"trainer": role(TRAINER), "rollout": role(ROLLOUT)})

    assert [pod["metadata"]["name"] for pod in pods(blueprint)] == [f"rl-{PLACEHOLDER}-a1-rollout-{i}-1" for i in range(2)]
    assert [pod["metadata"]["name"] for pod in pods(blueprint, "node")] == [
        f"rl-trainer-{PLACEHOLDER}-a1-n{i}-1" for i in range(2)
    ]
    for one in blueprint.objects:
        found = one["metadata"]["labels"]
        assert (found[JOB], found.get(PARENT)) in {("rl", None), ("rl-trainer", "rl")}
        assert found[UID] == PLACEHOLDER


def test_collocated_roles_share_a_pod_and_its_devices():
    """Group I is one pod with a container for each instance, which all have the same claim; a fraction needs no plug-in."""
    shared = {"per_group": 2, "instance_resources": {"gpus": "1/4", "cpu": 2, "memory": "1Gi", "disk": "5Gi"}}
    blueprint = drawn(
        {"rollout": role(ROLLOUT, total=4, **shared), "judge": role(ROLLOUT, driver=True, instance_resources={"gpus": "3/4"})},
        groups=[{"name": "pair", "roles": ["rollout", "judge"]}],
    )

    first, second = pods(blueprint)
    assert [one["name"] for one in first["spec"]["containers"]] == ["rollout-0", "rollout-1", "judge-0"]
    assert [one["name"] for one in second["spec"]["containers"]] == ["rollout-2", "rollout-3", "judge-1"]
    assert [env_of(one)["CUDA_VISIBLE_DEVICES"] for one in first["spec"]["containers"]] == ["0", "1", "0"]
    (template,) = (one for one in blueprint.objects if one["kind"] == "ResourceClaimTemplate")
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "gpu.nvidia.com", "count": 2}
    for pod in (first, second):
        assert pod["spec"]["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": template["metadata"]["name"]}]
        assert pod["spec"]["restartPolicy"] == "OnFailure"
        for one in pod["spec"]["containers"]:
            assert one["resources"]["claims"] == [{"name": "devices"}]
            assert "nvidia.com/gpu" not in one["resources"].get("limits", {})
    rollout = first["spec"]["containers"][0]
    assert rollout["resources"]["requests"] == {"cpu": "2", "memory": "1088Mi", "ephemeral-storage": "5Gi"}
    assert rollout["resources"]["limits"] == rollout["resources"]["requests"]


def test_groups_with_one_name_have_pods_of_their_own():
    """The pods of the first group were not created."""
    names = ("a", "b", "c", "d")
    together = [{"name": "pair", "roles": ["a", "b"]}, {"name": "pair", "roles": ["c", "d"]}]
    blueprint = drawn({name: role(ROLLOUT, total=1, driver=True) for name in names}, groups=together)

    found = [[one["name"] for one in pod["spec"]["containers"]] for pod in pods(blueprint)]
    assert found == [["a-0", "b-0"], ["c-0", "d-0"]]


def test_an_elastic_role_shares_machines_and_devices_with_its_group():
    """Node I and the pod of group I run on one machine and have one claim; worker K has the device of instance K."""
    trainer = role(TRAINER, nodes=2, nproc_per_node=2, instance_resources={"gpus": "1/2"})
    shared = {"total": 4, "per_group": 2, "instance_resources": {"gpus": "1/2"}}
    blueprint = drawn(
        {"trainer": trainer, "rollout": role(ROLLOUT, **shared), "judge": role(ROLLOUT, driver=True)},
        groups=[{"name": "pair", "roles": ["trainer", "rollout"]}],
    )

    nodes, units = pods(blueprint, "node"), [pod for pod in pods(blueprint) if "pair" in pod["metadata"]["name"]]
    claims = {one["metadata"]["name"]: one["spec"] for one in blueprint.objects if one["kind"] == "ResourceClaim"}
    assert [len(claims), len(nodes), len(units)] == [2, 2, 2]
    assert {spec["devices"]["requests"][0]["exactly"]["count"] for spec in claims.values()} == {2}
    assert not [one for one in blueprint.objects if one["kind"] == "ResourceClaimTemplate"]
    for node, unit in zip(nodes, units, strict=True):
        label = node["metadata"]["labels"][TOGETHER]
        assert unit["metadata"]["labels"][TOGETHER] == label
        for pod in (node, unit):
            (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term == {"labelSelector": {"matchLabels": {TOGETHER: label}}, "topologyKey": "kubernetes.io/hostname"}
            assert [one["resourceClaimName"] for one in pod["spec"]["resourceClaims"]] == [
                f"rl-{PLACEHOLDER}-pair-shared-{label[-1]}"
            ]
            assert all(one["resources"]["claims"] == [{"name": "devices"}] for one in pod["spec"]["containers"])
            assert all("nvidia.com/gpu" not in one["resources"].get("limits", {}) for one in pod["spec"]["containers"])
        assert env_of(node["spec"]["containers"][0])["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert [env_of(one)["CUDA_VISIBLE_DEVICES"] for one in unit["spec"]["containers"]] == ["0", "1"]
    assert nodes[0]["metadata"]["labels"][TOGETHER] != nodes[1]["metadata"]["labels"][TOGETHER]
    assert all(TOGETHER not in pod["metadata"]["labels"] for pod in pods(blueprint) if pod not in units)


def test_a_group_of_elastic_roles_alone_has_machines_together():
    """Actor and critic share their machines; without GPUs they claim no device."""
    none = {"instance_resources": {"gpus": 0}}
    blueprint = drawn(
        {"actor": role(TRAINER, nodes=2, **none), "critic": role(TRAINER, nodes=2, **none)},
        groups=[{"roles": ["actor", "critic"]}],
    )

    found = Counter(pod["metadata"]["labels"][TOGETHER] for pod in pods(blueprint, "node"))
    assert sorted(found.values()) == [2, 2]
    assert not [one for one in blueprint.objects if one["kind"].startswith("ResourceClaim")]
    assert all("resourceClaims" not in pod["spec"] for pod in pods(blueprint, "node"))


def test_a_pod_of_one_instance_asks_for_whole_devices_and_runs_once():
    """Its restart is another pod."""
    (pod, _) = pods(
        drawn({"rollout": role(ROLLOUT, driver=True, instance_resources={"gpus": 2, "user_defined": {"x.io/a": 3}})})
    )

    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "x.io/a": "3"}
    assert container["command"] == [*run_module("rallypoint.training.call", "m:serve", python=("python", "-u"))]


def test_an_instance_knows_its_place():
    """Its variables say which instance it is; those of the job are there, and no pod has another's."""
    spec = role(ROLLOUT, driver=True, total=4, per_group=2, env={"A": 1})
    containers = [one for pod in pods(drawn({"rollout": spec}, config={"lr": 0.1})) for one in pod["spec"]["containers"]]

    env = env_of(containers[3])
    expected = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "RALLYPOINT_GROUP": "1", "RALLYPOINT_ROLE": "rollout"}
    assert env.items() >= {**expected, "RALLYPOINT_JOB": "rl", "NAME": "rollout-3", "A": "1"}.items()
    assert json.loads(env["RALLYPOINT_CONFIG"]) == {"lr": 0.1}
    assert json.loads(env["RALLYPOINT_ROLES"]) == {"rollout": {"launch": "simple", "total": 4, "driver": True}}


def test_the_container_of_a_shared_pod_counts_its_lives():
    """Each start by the kubelet is the next incarnation, also after the pod was replaced."""
    pair = role({**ROLLOUT, "entrypoint": ["printenv", "RALLYPOINT_INCARNATION"]}, driver=True, per_group=2)
    (pod,) = pods(drawn({"rollout": pair}))

    command = pod["spec"]["containers"][0]["command"]
    assert command[:3] == ["sh", "-e", "-c"]
    assert command[5:] == ["/var/run/rallypoint/rollout-0.life", "0", "printenv", "RALLYPOINT_INCARNATION"]


def test_all_roles_are_one_gang():
    """MIN nodes, coordinators and all simple pods are admitted together; a node above MIN is not of the group."""
    blueprint = drawn({"trainer": role(TRAINER, queue="gpus", queue_priority="high"), "rollout": role(ROLLOUT)})

    (directory,) = pods(blueprint, "directory")
    assert GROUP not in directory["metadata"]["labels"]
    assert list(unrestricted(directory)) == []
    every = [one for one in blueprint.objects if one["kind"] == "Pod" and one != directory]
    gang = [pod for pod in every if GROUP in pod["metadata"]["labels"]]
    assert len(every) == 5
    assert {pod["metadata"]["labels"][GROUP] for pod in gang} == {f"rl-{PLACEHOLDER}"}
    assert {pod["metadata"]["annotations"][TOTAL] for pod in gang} == {"4"}
    assert len(gang) == 4
    assert {pod["metadata"]["annotations"][SHAPE] for pod in gang} == {"coordinator", "node-trainer", "unit-rollout"}
    assert all(pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus" for pod in every)
    assert all(pod["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high" for pod in every)


def test_workers_ask_for_the_resource_of_isolation():
    """One each: a node for each of its workers, an instance for itself."""
    blueprint = drawn({"trainer": role(TRAINER), "rollout": role(ROLLOUT)}, worker_isolation="example.com/worker")

    assert [asked(pod["spec"]["containers"][0], "example.com/worker") for pod in pods(blueprint, "node")] == ["2", "2"]
    assert [asked(pod["spec"]["containers"][0], "example.com/worker") for pod in pods(blueprint)] == ["1", "1"]


@pytest.mark.parametrize(
    ("roles", "fields", "text"),
    [
        pytest.param(
            {"a": role(ROLLOUT, driver=True, instance_resources={"gpus": 0.5})},
            {},
            "roles.a.instance_resources.gpus: '1/2' is not allowed; expected a whole number of devices; only instances of one "
            "group share the devices of a pod: set per_group, or name the role in groups",
            id="a fraction without a group",
        ),
        pytest.param(
            {"a": role(ROLLOUT, driver=True, instance_resources={"user_defined": {"ports": 1.5}})},
            {},
            "roles.a.instance_resources.user_defined.ports: is not allowed with backend kubernetes; expected the full name",
            id="a resource without a domain",
        ),
        pytest.param(
            {"a": role(TRAINER), "b": role(ROLLOUT, total=1, instance_resources={"gpus": 0})},
            {"groups": [{"roles": ["a", "b"]}]},
            "roles.a.nodes: '1:2' is not allowed; expected one number of nodes, because a is in a group",
            id="an elastic role with a range of nodes in a group",
        ),
        pytest.param(
            {"a": role(TRAINER, queue="x"), "b": role(ROLLOUT, queue="y")},
            {},
            "roles.b.queue: 'y' is not allowed; expected the same as of role a (x), or no value",
            id="two queues",
        ),
        pytest.param(
            {f"a{n}": role(ROLLOUT, driver=True, queue="x") for n in range(9)},
            {},
            "roles: 9 kinds of pods are not allowed with a queue; Kueue admits at most 8 as one group",
            id="too many kinds for a queue",
        ),
        pytest.param(
            {"a": role(ROLLOUT, driver=True, node_selector={"k": "1"}), "b": role(ROLLOUT, node_selector={"k": "2"})},
            {"groups": [{"roles": ["a", "b"]}]},
            "roles.b.node_selector.k: '2' is not allowed; expected the same as node_selector.k of role a",
            id="two places for one pod",
        ),
        pytest.param(
            {"a": {**ROLLOUT, "driver": True}, "b": role(ROLLOUT, workdir="~/x")},
            {},
            "roles.a.image: is missing",
            id="no image",
        ),
        pytest.param(
            {"a": role(TRAINER), "b": role(ROLLOUT, node_group_failover={"label": "rack"})},
            {},
            "roles.b.node_group_failover: is not allowed for a simple role, whose instances are replaced one by one",
            id="a node group of instances",
        ),
        pytest.param(
            {
                "a": role({**TRAINER, "nodes": 2, "nproc_per_node": 1}, node_group_failover={"label": "rack"}),
                "b": role(ROLLOUT),
            },
            {"groups": [{"roles": ["a", "b"]}]},
            "roles.a.node_group_failover: is not allowed for a role in a group, whose pods stay on one machine",
            id="a node group of a role in a group",
        ),
        pytest.param(
            {"a": role(TRAINER), "b": role(ROLLOUT)},
            {"worker_isolation": "W"},
            "worker_isolation: 'W' is not allowed; expected the full name of an extended resource",
            id="a word for isolation",
        ),
        pytest.param(
            {"a" * 30: role(TRAINER), "b": role(ROLLOUT)},
            {"name": "x" * 30},
            f"expected a shorter name; {'x' * 30}-{'a' * 30} may have at most 52 characters",
            id="a long name of a job of its own",
        ),
    ],
)
def test_what_cannot_run_as_pods_is_refused(roles, fields, text):
    """Each field by its path, with what is allowed."""
    assert text in refused(roles, **fields)


def test_all_problems_are_told_at_once():
    """Of each role."""
    text = refused({"a": {**ROLLOUT, "driver": True}, "b": role(ROLLOUT, instance_resources={"gpus": "1/3"})})

    assert [line.split(":")[0] for line in text.splitlines()[1:]] == ["roles.a.image", "roles.b.instance_resources.gpus"]


@pytest.mark.parametrize(("instances", "limit"), [(1, "4096"), (3, "4096"), (12, "1024")])
def test_each_instance_may_leave_a_result(instances, limit):
    """As the termination message of its container, of which all containers of a pod share 12 KiB."""
    grouped = role(ROLLOUT, total=instances, per_group=instances, driver=True, instance_resources={"gpus": 0})
    (pod,) = pods(drawn({"rollout": grouped}))

    for container in pod["spec"]["containers"]:
        told = env_of(container)
        assert (told["RALLYPOINT_RESULT_FILE"], told["RALLYPOINT_RESULT_LIMIT"]) == ("/dev/termination-log", limit)
        assert container["terminationMessagePath"] == "/dev/termination-log"


# --- properties ------------------------------------------------------------------------------------------------------------


@st.composite
def documents(draw_: Any) -> dict[str, Any]:
    """Jobs with an elastic role, simple ones, and some of these in a group."""
    number = draw_(st.integers(1, 3))
    shared, roles = draw_(st.booleans()) and number > 1, {}
    for n in range(number):
        per_group = draw_(st.integers(1, 3))
        many = (2 if shared else draw_(st.integers(1, 3))) * per_group
        gpus = draw_(st.sampled_from([0, "1/4", "1/3"] if (shared and n < 2) or per_group > 1 else [0, 1, 3]))
        needs = {"gpus": gpus, "cpu": draw_(st.sampled_from(["1", "500m"]))}
        roles[f"r{n}"] = role(ROLLOUT, total=many, per_group=per_group, driver=n == 0, instance_resources=needs)
    if draw_(st.booleans()):
        roles["trainer"] = role(TRAINER, nodes=draw_(st.sampled_from([1, "1:3", "2:2"])))
    if draw_(st.booleans()):
        roles["r0"]["queue"] = "q"
    together = [{"roles": ["r0", "r1"]}] if shared and number > 1 else []
    return {"name": draw_(st.sampled_from(["rl", "x" * 40])), "roles": roles, "groups": together}


@given(documents())
def test_every_instance_is_in_one_container(document):
    """With its own rank; pods have different names, and a restricted namespace takes them."""
    job = load_job(document, based=False)
    blueprint = draw(job, namespace="team-a")

    wanted = Counter({(one.name, str(i)): 1 for one in job.roles if one.launch == "simple" for i in range(counts(one)[0])})
    containers = [one for pod in pods(blueprint) for one in pod["spec"]["containers"]]
    assert Counter((env_of(one)["RALLYPOINT_ROLE"], env_of(one)["RANK"]) for one in containers) == wanted
    names = [(one["kind"], one["metadata"]["name"]) for one in blueprint.objects]
    assert len(names) == len(set(names))
    assert max(len(name) for kind, name in names if kind == "Pod") <= 63
    assert [wrong for pod in pods(blueprint) for wrong in unrestricted(pod)] == []
    assert all(len(pod["spec"]["hostname"]) <= 63 for pod in pods(blueprint))


@given(documents())
def test_a_gang_counts_its_pods(document):
    """So that Kueue admits it once all of them are there, and not before."""
    blueprint = draw(load_job(document, based=False), namespace="team-a")

    gang = [one for one in blueprint.objects if one["kind"] == "Pod" and GROUP in one["metadata"]["labels"]]
    assert {one["metadata"]["annotations"][TOTAL] for one in gang} <= {str(len(gang))}
    assert bool(gang) == ("queue" in document["roles"]["r0"])


@given(documents())
def test_devices_are_never_shared_beyond_one(document):
    """Fails if the shares on a device add up to more than one, or the pod of an instance is found with other devices."""
    job = load_job(document, based=False)
    shares = {one.name: one.instance_resources.gpus or Fraction(0) for one in job.roles}

    for group in groups(job):
        assert {group_of(job, one.role, one.index) == group for one in group.instances} == {True}
        used: dict[int, Fraction] = {}
        for one in group.instances:
            share = shares[one.role]
            assert len(one.devices) == (share if share.denominator == 1 else 1)
            for device in one.devices:
                used[device] = used.get(device, Fraction(0)) + min(share, Fraction(1))
        assert all(amount <= 1 for amount in used.values())
        assert sorted(used) == list(range(group.devices))


def test_a_token_is_in_a_secret_alone():
    """No ConfigMap and no pod holds it; pods mount the Secret."""
    job = load_job({"name": "rl", "roles": {"rollout": role(ROLLOUT, driver=True)}}, based=False)
    token = "correct-horse"
    found = list(serving(JobRef(name="rl", uid="u", namespace="n"), job, compile_roles(job), token=token))

    encoded = base64.b64encode(token.encode()).decode()
    assert [one["kind"] for one in found if token in json.dumps(one) or encoded in json.dumps(one)] == ["Secret"]
    (secret,) = (one for one in found if one["kind"] == "Secret")
    (pod, _) = pods(drawn({"rollout": role(ROLLOUT, driver=True)}))
    mounted = {volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume}
    assert secret["metadata"]["name"].replace("-u-", f"-{PLACEHOLDER}-") in mounted


@pytest.mark.parametrize(
    ("tls", "folder", "volume"),
    [
        pytest.param("auto", "/etc/rallypoint-roles", "rallypoint-roles", id="the job's own certificates"),
        pytest.param({"secret": "mine"}, "/etc/rallypoint-tls", "rallypoint-tls", id="certificates of the user"),
    ],
)
def test_calls_between_roles_have_certificates(tls, folder, volume):
    """Pods of both kinds of roles mount them where their variable says; the key of the authority reaches no pod."""
    blueprint = drawn({"trainer": role(TRAINER), "rollout": role(ROLLOUT)}, tls=tls)

    for pod in (pods(blueprint)[0], pods(blueprint, "node")[0]):
        container = pod["spec"]["containers"][0]
        assert env_of(container)["RALLYPOINT_ROLES_TLS"] == folder
        assert env_of(container)["RALLYPOINT_ROLES_SECRET_FILE"] == "/etc/rallypoint-roles/token"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        secrets = {one["name"]: one["secret"] for one in pod["spec"]["volumes"] if "secret" in one}
        assert mounts[folder] == volume
        assert {"ca.crt", "tls.crt", "tls.key"} <= {item["key"] for item in secrets[volume]["items"]}
        assert "ca.key" not in {item["key"] for one in secrets.values() for item in one.get("items", ())}
        assert secrets[volume]["secretName"].startswith("mine" if tls != "auto" else "rl-")
    (directory,) = pods(blueprint, "directory")
    (container,) = directory["spec"]["containers"]
    assert container["command"][-2:] == ["--tls", folder]
    assert volume in {mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder}


def test_without_tls_no_pod_has_certificates():
    """A job without `tls` calls in plain text, with its token."""
    for pod in (pods(drawn({"trainer": role(TRAINER), "rollout": role(ROLLOUT)})))[:1]:
        assert "RALLYPOINT_ROLES_TLS" not in env_of(pod["spec"]["containers"][0])
