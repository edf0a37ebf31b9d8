"""The 25 cases of the chart's own tests: what it expects is what is rendered, and what it refuses is refused.

Where the chart compares whole documents, so do these: the base's in full, every other as the base with an edit.
"""

from __future__ import annotations

import pytest

from rallypoint.compat.pytorchjob_generator import SettingsError
from tests.compat.pytorchjob_generator.samples import BASE, CHART, edited, job, rendered, replicas, templates
from tests.crds import problems

SSH = {"secretName": "my-git-secret", "configMapName": "my-git-config-map"}
VOLUMES = [
    {"name": "arbitrary-name-0", "claimName": "name-matching-the-actual-PersistentVolumeClaim", "mountPath": "/data"},
    {"name": "arbitrary-name-1", "claimName": "name-matching-another-actual-PersistentVolumeClaim", "mountPath": "/data-redux"},
]
CONTAINERS = [
    {"name": "init-container-1", "image": "busybox", "command": ["sh", "-c", "whoami && ls -l"]},
    {"name": "init-container-2", "image": "ubuntu", "command": ["sh", "-c", "echo hello world!"]},
]
ROCE = {
    "roceGdrResName": "nvidia.com/roce_gdr",
    "numRoceGdr": 2,
    "topologyFileConfigMap": "nvidia-topo-gdr",
    "ncclGdrEnvConfigMap": "nccl-netwk-env-vars",
    "multiNicNetworkName": "multi-nic-cni-operator-ipvlanl3",
}
NVME = {"storage": "800Gi", "mountPath": "/workspace/scratch-nvme"}
TOLERANCE = {
    "admissionGracePeriodDuration": "10s",
    "warmupGracePeriodDuration": "11s",
    "failureGracePeriodDuration": "22s",
    "retryPausePeriodDuration": "17s",
    "forcefulDeletionGracePeriodDuration": "19s",
    "deletionOnFailureGracePeriodDuration": "2s",
    "successTTLDuration": "600s",
}
PREFIX = "workload.codeflare.dev.appwrapper/"


def _container(template):
    return template["spec"]["containers"][0]


def _before(things, *new):
    """In front of what is last: shared memory."""
    things[-1:-1] = new


def with_sakkara(template):
    template["spec"]["schedulerName"] = "sakkara"
    rank = {"fieldRef": {"fieldPath": "metadata.labels['sakkara.member.rank']"}}
    _container(template)["env"] = [{"name": "SAKKARA_RANK", "valueFrom": rank}]
    command = _container(template)["command"]
    told = 'echo "Sakkara is enabled: using Sakkara-assigned rank instead of the default PyTorchJob rank"'
    command[2] = command[2].replace("git clone", f"{told}\nexport RANK=$SAKKARA_RANK\ngit clone")


def with_variables(template):
    _container(template)["env"] += [
        {"name": "EXAMPLE_VAR1", "value": "6"},
        {"name": "EXAMPLE_VAR2", "value": "example2string"},
        {"name": "EXAMPLE_VAR3", "valueFrom": {"secretKeyRef": {"name": "my-secret-name", "key": "my-secret-key"}}},
        {"name": "EXAMPLE_VAR4", "valueFrom": {"configMapKeyRef": {"name": "my-configmap-name", "key": "my-configmap-key"}}},
    ]


def with_topology(template):
    path = "/var/run/nvidia-topologyd"
    template["spec"]["volumes"].insert(0, {"name": "topology-volume", "configMap": {"name": "nvidia-topo-gdr"}})
    _container(template)["volumeMounts"].insert(0, {"name": "topology-volume", "mountPath": path})
    _container(template)["env"].append({"name": "NCCL_TOPO_FILE", "value": f"{path}/virtualTopology.xml"})


def with_roce(template):
    with_topology(template)
    template["metadata"] = {"annotations": {"k8s.v1.cni.cncf.io/networks": "multi-nic-cni-operator-ipvlanl3"}}
    container = _container(template)
    container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    container["envFrom"] = [{"configMapRef": {"name": "nccl-netwk-env-vars"}}]
    asked = {**container["resources"]["requests"], "nvidia.com/roce_gdr": 2}
    container["resources"] = {"requests": asked, "limits": asked}


def with_nvme(template):
    claim = {
        "storageClassName": "odf-lvm-vg1",
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "800Gi"}},
    }
    volume = {"name": "ephemeral-odf-lvm-vg1", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    _before(template["spec"]["volumes"], volume)
    _before(_container(template)["volumeMounts"], {"name": volume["name"], "mountPath": NVME["mountPath"]})
    # The chart sets the first alone, and speaks of the second.
    names = ("NVME_MOUNT_PATH", "MOUNT_PATH_NVME")
    _container(template)["env"] += [{"name": name, "value": NVME["mountPath"]} for name in names]


def with_volumes(template):
    for volume in VOLUMES:
        claim = {"name": volume["name"], "persistentVolumeClaim": {"claimName": volume["claimName"]}}
        _before(template["spec"]["volumes"], claim)
        _before(_container(template)["volumeMounts"], {"name": volume["name"], "mountPath": volume["mountPath"]})


def with_ssh(template):
    key, hosts = "private-ssh-git-deploy-key", "github-known-hosts"
    _before(
        template["spec"]["volumes"],
        {"name": key, "secret": {"secretName": "my-git-secret", "optional": False}},
        {"name": hosts, "configMap": {"name": "my-git-config-map"}},
    )
    _before(
        _container(template)["volumeMounts"],
        {"name": key, "readOnly": True, "mountPath": "/tmp/.ssh/keys"},
        {"name": hosts, "mountPath": "/tmp/.ssh/hosts"},
    )
    command = "ssh -i /tmp/.ssh/keys/id_rsa -o UserKnownHostsFile=/tmp/.ssh/hosts/known_hosts -vv"
    _container(template)["env"].append({"name": "GIT_SSH_COMMAND", "value": command})


def with_init_containers(template):
    template["spec"]["initContainers"] = CONTAINERS


def with_harmless_variable(template):
    with_topology(template)
    _container(template)["env"].append({"name": "EXAMPLE_VAR1", "value": "42"})


VARIABLES = [
    {"name": "EXAMPLE_VAR1", "value": 6},
    {"name": "EXAMPLE_VAR2", "value": "example2string"},
    {"name": "EXAMPLE_VAR3", "secret": {"name": "my-secret-name", "key": "my-secret-key"}},
    {"name": "EXAMPLE_VAR4", "configmap": {"name": "my-configmap-name", "key": "my-configmap-key"}},
]
EVERYTHING = {"sshGitCloneConfig": SSH, **ROCE, "mountNVMe": NVME, "volumes": VOLUMES, "initContainers": CONTAINERS}


@pytest.mark.parametrize(
    ("changes", "edits"),
    [
        pytest.param({}, (), id="metadata and spec of the base"),
        pytest.param({"schedulerName": "sakkara"}, (with_sakkara,), id="scheduler"),
        pytest.param({"sshGitCloneConfig": SSH}, (with_ssh,), id="private clones"),
        pytest.param({"environmentVariables": VARIABLES}, (with_variables,), id="variables of four kinds"),
        pytest.param(ROCE, (with_roce,), id="RoCE GDR"),
        pytest.param({"mountNVMe": NVME}, (with_nvme,), id="NVMe"),
        pytest.param({"volumes": VOLUMES}, (with_volumes,), id="volumes"),
        pytest.param({"initContainers": CONTAINERS}, (with_init_containers,), id="init containers"),
        pytest.param(EVERYTHING, (with_roce, with_nvme, with_volumes, with_ssh, with_init_containers), id="all at once"),
        pytest.param(
            {"topologyFileConfigMap": "nvidia-topo-gdr", "environmentVariables": [{"name": "EXAMPLE_VAR1", "value": 42}]},
            (with_harmless_variable,),
            id="a harmless variable beside the topology",
        ),
    ],
)
def test_a_whole_document_is_the_charts(changes, edits):
    """Every field of it, no more and no less; and a Kubernetes that knows the kinds takes all of it."""
    document = rendered(**changes)

    assert document == edited(*edits)
    assert problems(document) + problems(job(document)) == []


def test_a_job_of_one_pod_has_no_workers():
    """A PyTorchJob with an empty worker behaves strangely."""
    assert list(replicas(rendered(numPods=1))) == ["Master"]


def test_custom_labels_are_on_everything():
    """On the AppWrapper beside the queue, on the PyTorchJob, and on the pods of both kinds."""
    document = rendered(customLabels=[{"key": "project-name", "value": "my-project"}])
    label = {"project-name": "my-project"}

    assert document["metadata"]["labels"] == {**CHART["metadata"]["labels"], **label}
    assert job(document)["metadata"]["labels"] == label
    assert [template["metadata"]["labels"] for template in templates(document)] == [label, label]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"jobName": "123Job"}, id="a name that begins with a digit"),
        pytest.param({"jobName": "this-job-name-is-just-way-too-long-to-be-acceptable-for-our-chart"}, id="a name too long"),
        pytest.param({"imagePullPolicy": "Sometimes"}, id="an unknown pull policy"),
        pytest.param(
            {"topologyFileConfigMap": "nvidia-topo-gdr", "environmentVariables": [{"name": "NCCL_TOPO_FILE", "value": "f"}]},
            id="the topology's variable twice",
        ),
    ],
)
def test_what_the_chart_refuses_is_refused(changes):
    """Nothing is rendered."""
    with pytest.raises(SettingsError):
        rendered(**changes)


def test_without_shared_memory_there_are_no_volumes():
    """Both lists are there, and empty, in both kinds of pods."""
    for template in templates(rendered(disableSharedMemory=True)):
        assert template["spec"]["volumes"] == []
        assert _container(template)["volumeMounts"] == []


def test_the_queue_can_be_taken_back():
    """Then there are no labels at all."""
    assert "labels" not in rendered(queueName=None)["metadata"]


def test_the_namespace_is_the_appwrappers():
    """Of nothing else: Kubernetes puts the rest beside it."""
    document = rendered(namespace="testing-ns")

    assert document["metadata"]["namespace"] == "testing-ns"
    assert "namespace" not in job(document)["metadata"]


def test_the_pull_policy_and_secrets_are_those_of_both_kinds_of_pods():
    """The chart's own test looks at the workers alone."""
    for template in templates(rendered(imagePullPolicy="Always", imagePullSecrets=[{"name": "secret-one"}])):
        assert _container(template)["imagePullPolicy"] == "Always"
        assert template["spec"]["imagePullSecrets"] == [{"name": "secret-one"}]


def test_fault_tolerance_is_told_in_annotations():
    """All eight, with values that are strings and that AppWrapper's controller parses as they were written."""
    document = rendered(**TOLERANCE, retryLimit=42)
    expected = {f"{PREFIX}{key}": text for key, text in {**TOLERANCE, "retryLimit": "42"}.items()}

    assert document["metadata"]["annotations"] == {**CHART["metadata"]["annotations"], **expected}


def test_zero_is_a_value():
    """No retry, and no grace at the end."""
    document = rendered(retryLimit=0, terminationGracePeriodSeconds=0)

    assert document["metadata"]["annotations"][f"{PREFIX}retryLimit"] == "0"
    assert [template["spec"]["terminationGracePeriodSeconds"] for template in templates(document)] == [0, 0]


def test_one_annotation_comes_alone():
    """What is not set is left to the controller's own defaults."""
    annotations = rendered(deletionOnFailureGracePeriodDuration="6h")["metadata"]["annotations"]

    assert annotations == {**CHART["metadata"]["annotations"], f"{PREFIX}deletionOnFailureGracePeriodDuration": "6h"}


def test_settings_are_not_changed_by_rendering():
    """The base of all these cases is the same after them."""
    before = repr(BASE)
    rendered(**EVERYTHING)

    assert repr(BASE) == before
