"""What cannot run as pods is refused at plan time, with its field, its value and what is allowed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.contract import BackendError, SubmitError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels, read_pod
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.rbac import COORDINATOR, SUPERVISOR, allows, rbac
from rallypoint.cli.main import main
from rallypoint.job.document import read_yaml
from tests.kube.manifests import blueprint_of

_HUGE = {"containers": [{"name": "trainer"}, {"name": "trainer2", "image": "x", "ports": [{"containerPort": 29610}]}]}


def mounted(path):
    return {"volumes": [{"name": "v", "emptyDir": {}}], "volume_mounts": [{"name": "v", "mountPath": path}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"image": None}, "image: is missing", id="no image"),
        pytest.param({"workdir": "~/src"}, "workdir: '~/src' is not allowed", id="somebody's home"),
        pytest.param({"resources": {"cpu": 2, "cpu_limit": 1}}, "resources.cpu_limit: '1' is not allowed", id="limit below"),
        pytest.param({"resources": {"memory": "4Gi", "memory_limit": "4G"}}, "resources.memory_limit: '4G'", id="Gi above G"),
        pytest.param({"resources": {"memory": "8"}}, "resources.memory: '8' is not allowed", id="eight bytes"),
        pytest.param({"resources": {"shm": "100m"}}, "resources.shm: '100m'", id="a tenth of a byte"),
        pytest.param({"resources": {"cpu": "0.0005"}}, "resources.cpu: '0.0005'", id="less than a thousandth"),
        pytest.param(
            {"resources": {"extended": {"rdma/hca": "1.5"}}}, "resources.extended.rdma/hca: '1.5'", id="half a device"
        ),
        pytest.param(
            {"resources": {"gpus": 1, "extended": {"nvidia.com/gpu": 1}}},
            "resources.extended.nvidia.com/gpu: '1'",
            id="GPUs twice",
        ),
        pytest.param({"volumes": [{"name": "V", "emptyDir": {}}]}, "volumes[0].name: 'V'", id="volume's name"),
        pytest.param({"volumes": [{"name": "v"}]}, "volumes[0]: {'name': 'v'} is not allowed", id="no source"),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {}}] * 2}, "volumes[1].name: 'v' is not allowed", id="volume twice"
        ),
        pytest.param(
            {"volumes": [{"name": "rallypoint-x", "emptyDir": {}}]}, "volumes[0].name: 'rallypoint-x'", id="our volume"
        ),
        pytest.param({"volume_mounts": [{"name": "v", "mountPath": "/v"}]}, "volume_mounts[0].name: 'v'", id="no such volume"),
        pytest.param(mounted("data"), "volume_mounts[0].mountPath: 'data'", id="relative mount"),
        pytest.param(
            mounted("/dev/shm"),
            "volume_mounts[0].mountPath: '/dev/shm' is not allowed; expected another path; resources.shm sets the size",
            id="shm",
        ),
        pytest.param(mounted("/etc/rallypoint/x"), "volume_mounts[0].mountPath: '/etc/rallypoint/x'", id="below ours"),
        pytest.param(mounted("/var/run/rallypoint"), "volume_mounts[0].mountPath: '/var/run/rallypoint'", id="ours"),
        pytest.param({"labels": {"rallypoint.dev/job": "x"}}, "labels.rallypoint.dev/job: is not allowed", id="our label"),
        pytest.param(
            {"labels": {"team": "-x"}},
            "'-x' is not allowed; expected at most 63",
            id="label's value",
        ),
        pytest.param({"labels": {"a/b/c": "x"}}, "a/b/c: is not a valid label name", id="label's name"),
        pytest.param({"annotations": {"-": "x"}}, "-: is not a valid annotation name", id="annotation's name"),
        pytest.param({"node_selector": {"pool": "a:b"}}, "node_selector.pool: 'a:b'", id="selector"),
        pytest.param({"service_account": "A"}, "service_account: 'A' is not allowed", id="account"),
        pytest.param({"image_pull_secrets": ["a_b"]}, "image_pull_secrets[0]: 'a_b'", id="pull secret"),
        pytest.param({"host_ignore_list": ["a:1"]}, "host_ignore_list[0]: 'a:1'", id="machine"),
        pytest.param({"tolerations": [{"operator": "In"}]}, "tolerations[0].operator: 'In'", id="operator"),
        pytest.param({"tolerations": [{"key": "a", "effect": "No"}]}, "tolerations[0].effect: 'No'", id="effect"),
        pytest.param({"tolerations": [{"value": "a"}]}, "tolerations[0].key: is missing", id="no key"),
        pytest.param({"affinity": {"hostAffinity": {}}}, "affinity.hostAffinity: is not a known key", id="affinity"),
        pytest.param({"affinity": {"nodeAffinity": []}}, None, id="empty affinity is none"),
        pytest.param({"affinity": {"nodeAffinity": ["x"]}}, "affinity.nodeAffinity: ['x'] is not allowed", id="node affinity"),
        pytest.param({"sidecars": [{"name": "s"}]}, "sidecars[0].image: is missing", id="sidecar without an image"),
        pytest.param({"sidecars": [{"name": "trainer", "image": "x"}]}, "sidecars[0].name: 'trainer'", id="our container"),
        pytest.param(
            {"sidecars": [{"name": "s", "image": "x"}], "init_containers": [{"name": "s", "image": "x"}]},
            "sidecars[0].name: 's'",
            id="container twice",
        ),
        pytest.param({"pod_env": [{"name": "A"}]}, "pod_env[0]: {'name': 'A'} is not allowed", id="no value"),
        pytest.param({"pod_env": [{"name": "POD_IP", "value": "x"}]}, "pod_env[0].name: 'POD_IP'", id="our variable"),
        pytest.param({"env": {"A": 1}, "pod_env": [{"name": "A", "value": "x"}]}, "pod_env[0].name: 'A'", id="variable twice"),
        pytest.param(
            {"pod_env": [{"name": "A", "value": 1}]},
            "pod_env[0].value: 1 is not allowed; expected a string",
            id="number",
        ),
        pytest.param({"env_from": [{"secret": "x"}]}, "env_from[0]: {'secret': 'x'} is not allowed", id="source"),
        pytest.param({"pod_template": {"kind": "Pod"}}, "pod_template.kind: is not a known key", id="template"),
        pytest.param({"pod_template": {"spec": {"containers": {}}}}, "pod_template.spec.containers: {} is not", id="no list"),
        pytest.param({"pod_template": {"spec": {"containers": [{"image": "x"}]}}}, "each with a name", id="no name"),
        pytest.param(
            {"pod_template": {"metadata": {"name": "x"}}}, "pod_template.metadata.name: is not a known key", id="name"
        ),
        pytest.param({"pod_template": {"spec": _HUGE}}, "trainer2.ports: 29610 is not allowed", id="our port"),
        pytest.param(
            {"pod_template": {"spec": {"hostNetwork": True}}, "rendezvous": {"port": 29610}},
            "rendezvous.port: 29610 is not allowed",
            id="two of ours on a host's port",
        ),
        pytest.param({"health": {"metrics_port": 29600}}, "health.metrics_port: 29600 is not allowed", id="no port of its own"),
        pytest.param({"health": {"metrics_port": 0}}, None, id="no metrics"),
        pytest.param({"queue_priority": "x"}, "queue_priority: 'x' is not allowed", id="priority without a queue"),
        pytest.param(
            {"queue": "a", "labels": {"kueue.x-k8s.io/queue-name": "b"}},
            "queue: 'a' is not allowed; expected the same as",
            id="two queues",
        ),
        pytest.param({"termination_grace_period": "5s"}, "termination_grace_period: '5s' is not allowed", id="grace too short"),
    ],
)
def test_a_job_that_cannot_run_as_pods_is_refused(fields, said):
    """One line for each thing that is wrong, before anything is created."""
    if said is None:
        assert blueprint_of(**fields).objects
        return
    with pytest.raises(SubmitError) as caught:
        blueprint_of(**fields)

    assert said in str(caught.value)
    assert str(caught.value).startswith("job digits cannot run on Kubernetes:\n")


def test_everything_that_is_wrong_is_told_at_once():
    """Nobody mends a job line by line, one submission for each."""
    with pytest.raises(SubmitError) as caught:
        blueprint_of(image=None, service_account="A", queue_priority="x")

    assert [line.split(":")[0] for line in str(caught.value).splitlines()[1:]] == ["image", "service_account", "queue_priority"]


def test_a_named_role_is_named_in_errors():
    """The path is the one that the document has."""
    with pytest.raises(SubmitError, match=r"roles\.learner\.image: is missing"):
        blueprint_of(entrypoint=None, image=None, roles={"learner": {"entrypoint": "a.py"}})


_NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True)
_NUMBER = st.integers(0, 999_999)
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@given(_NAME, st.text("0123456789abcdef", min_size=16, max_size=16), st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), max_size=8))
def test_names_are_legal_and_unique(name, uid, which):
    """However long a job's name and however large its numbers, every object has a name of its own that Kubernetes takes."""
    job = JobRef(name=name, uid=uid, namespace="n")
    which = sorted(set(which))
    pods = [names.node_pod(job, *numbers) for numbers in which]
    pods += [names.coordinator_pod(job, term) for term in {numbers[0] for numbers in which}]
    pods.append(names.supervisor_pod(job))

    assert len(set(pods)) == len(pods)
    for pod in (*pods, names.service(job), names.group(job), names.job_configmap(name)):
        assert _DNS.fullmatch(pod), pod
    assert names.service(job)[0].isalpha()


@given(_NAME, st.text("0123456789abcdef", min_size=16, max_size=16), _NUMBER, _NUMBER, _NUMBER)
def test_labels_are_legal_and_read_back(name, uid, attempt, node, incarnation):
    """Every value fits into a label, and what was written is what is read."""
    written = labels(JobRef(name=name, uid=uid, namespace="n"), Part.NODE, attempt=attempt, node=node, incarnation=incarnation)
    read = read_pod(written)

    assert all(re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", value) for value in written.values())
    assert read is not None
    assert (read.job, read.uid, read.attempt, read.node, read.incarnation) == (name, uid, attempt, node, incarnation)


def test_the_roles_grant_what_they_name_and_no_more():
    """The coordinator may touch ConfigMaps and look at Leases; it can neither read Secrets nor make pods."""
    assert allows(COORDINATOR, group="", resource="configmaps", verb="patch")
    assert allows(COORDINATOR, group="coordination.k8s.io", resource="leases", verb="get")
    assert allows(SUPERVISOR, group="", resource="pods/log", verb="get")
    for verb in ("get", "list", "create"):
        assert not allows(COORDINATOR, group="", resource="secrets", verb=verb)
        assert not allows(COORDINATOR, group="", resource="pods", verb=verb)
    for grants in (COORDINATOR, SUPERVISOR):
        assert all("*" not in (grant.group, grant.resource, *grant.verbs) for grant in grants)
        assert all(list(grant.verbs) == sorted(grant.verbs) for grant in grants)


def test_rallypoint_manifests_rbac_prints_what_an_administrator_applies(capsys):
    """Account, Role and binding for each side, in the namespace that is named; each binding is of its own Role and account."""
    assert main(["manifests", "rbac", "--namespace", "team-a", "--supervisor-account", "airflow-worker"]) == 0
    items = [read_yaml(text) for text in capsys.readouterr().out.split("---\n")]

    assert [item["kind"] for item in items] == ["ServiceAccount", "Role", "RoleBinding"] * 2
    assert {item["metadata"]["namespace"] for item in items} == {"team-a"}
    for account, role, binding in (items[:3], items[3:]):
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "team-a"}]
    assert items[3]["metadata"]["name"] == "airflow-worker"
    assert items == [read_yaml_of(item) for item in rbac("team-a", supervisor="airflow-worker")]


def read_yaml_of(item):
    """An item as its YAML reads back."""
    from rallypoint.job.document import write_yaml

    return read_yaml(write_yaml(item))


@pytest.mark.parametrize(
    "arguments", [pytest.param({"namespace": "A"}, id="namespace"), pytest.param({"supervisor": "a b"}, id="account")]
)
def test_names_that_are_none_are_refused(arguments):
    """What the API server would refuse is not printed."""
    with pytest.raises(BackendError, match="is not allowed"):
        rbac(**{"namespace": "n", **arguments})
