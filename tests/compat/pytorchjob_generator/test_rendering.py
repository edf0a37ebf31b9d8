"""What each setting yields where the chart's own tests do not look, and the chart's slips that are not ours."""

from __future__ import annotations

import pytest
import yaml

from rallypoint.compat.pytorchjob_generator import appwrapper, notes
from rallypoint.job.document import write_yaml
from tests.compat.pytorchjob_generator.samples import BARE, container, edited, job, rendered, replicas, settings, templates
from tests.crds import problems

HEALTH = {"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["ERR", "TESTING", "EVICT"]}


def spec(**changes):
    """The spec of the master's pod."""
    return next(templates(rendered(**changes)))["spec"]


def expressions(**changes):
    affinity = spec(**changes)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    return term["matchExpressions"]


def annotation(key, value):
    return rendered(**{key: value})["metadata"]["annotations"][f"workload.codeflare.dev.appwrapper/{key}"]


# --- Every setting ---------------------------------------------------------------------------------------------------------


def test_the_name_is_that_of_both_objects():
    """The AppWrapper and the PyTorchJob."""
    document = rendered(jobName="other")

    assert (document["metadata"]["name"], job(document)["metadata"]["name"]) == ("other", "other")


def test_ignored_hosts_are_kept_off_beside_the_unhealthy():
    """Both in one term: Kubernetes takes a machine that fits any term."""
    hosts = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["host-a", "10"]}

    assert expressions(hostIgnoreList=["host-a", 10]) == [HEALTH, hosts]


def test_health_checks_are_labels_of_the_pods():
    """They join the custom ones, and change nothing about where pods may run."""
    document = rendered(autopilotHealthChecks=["gpu-pcie-bw"], customLabels=[{"key": "team", "value": "a"}])

    for template in templates(document):
        assert template["metadata"] == {"labels": {"team": "a", "autopilot": "", "gpu-pcie-bw": ""}}
    assert "labels" not in spec(autopilotHealthChecks=["gpu-pcie-bw"])
    assert expressions(autopilotHealthChecks=["gpu-pcie-bw"]) == [HEALTH]


@pytest.mark.parametrize(
    ("changes", "requests", "limits"),
    [
        pytest.param({}, ("500m", 8, "1Gi"), ("500m", 8, "1Gi"), id="none: as much as is asked for"),
        pytest.param(
            {"limitCpusPerPod": 2, "limitGpusPerPod": 8, "limitMemoryPerPod": "4Gi"},
            ("500m", 8, "1Gi"),
            (2, 8, "4Gi"),
            id="each of its own",
        ),
        pytest.param({"limitGpusPerPod": 0}, ("500m", 8, "1Gi"), ("500m", 8, "1Gi"), id="0 is none given"),
        pytest.param({"numCpusPerPod": 3, "numGpusPerPod": 0}, (3, 0, "1Gi"), (3, 0, "1Gi"), id="no GPUs are told, too"),
    ],
)
def test_limits_are_the_requests_unless_they_are_given(changes, requests, limits):
    """CPUs, GPUs and memory, one by one."""
    keys = ("cpu", "nvidia.com/gpu", "memory")

    resources = container(rendered(**changes))["resources"]

    assert tuple(resources["requests"][key] for key in keys) == requests
    assert tuple(resources["limits"][key] for key in keys) == limits


def test_the_resource_of_rdma_has_the_name_that_is_given():
    """In requests and limits, and it may lock memory."""
    got = container(rendered(roceGdrResName="example.com/roce", numRoceGdr=2))

    assert [kind["example.com/roce"] for kind in got["resources"].values()] == [2, 2]
    assert got["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


@pytest.mark.parametrize(
    ("account", "security"),
    [
        pytest.param("gdr", {"capabilities": {"add": ["IPC_LOCK"]}}, id="that of RDMA"),
        pytest.param("trainer", None, id="any other"),
    ],
)
def test_the_service_account_is_the_pods(account, security):
    """One of them may lock memory, too."""
    document = rendered(serviceAccountName=account)

    assert [template["spec"]["serviceAccountName"] for template in templates(document)] == [account, account]
    assert container(document).get("securityContext") == security


def test_sources_of_variables_are_passed_on():
    """The one of NCCL comes last; without any there is no list."""
    given = [{"secretRef": {"name": "s", "optional": True}, "prefix": "S_"}, {"configMapRef": {"name": "c"}}]

    assert container(rendered(envFrom=given, ncclGdrEnvConfigMap="n"))["envFrom"] == [*given, {"configMapRef": {"name": "n"}}]
    assert "envFrom" not in container(rendered())


@pytest.mark.parametrize(
    ("changes", "scheduler"),
    [
        pytest.param({}, None, id="the cluster's own"),
        pytest.param({"schedulerName": "scheduler-plugins-scheduler"}, "scheduler-plugins-scheduler", id="a name"),
        pytest.param({"bypassCoscheduler": True}, "default-scheduler", id="the older chart's key"),
        pytest.param({"bypassCoscheduler": False}, None, id="the older chart's default"),
        pytest.param({"bypassCoscheduler": False, "schedulerName": "sakkara"}, "sakkara", id="both keys, one meaning"),
        pytest.param(
            {"bypassCoscheduler": True, "schedulerName": "default-scheduler"}, "default-scheduler", id="twice the same"
        ),
    ],
)
def test_the_scheduler_is_named_by_either_chart(changes, scheduler):
    """`bypassCoscheduler` of 1.1.5 became `schedulerName`."""
    assert spec(**changes).get("schedulerName") == scheduler


def test_priority_and_restart_policy_have_their_places():
    """The class is the pods', the policy the replicas': a pod of a PyTorchJob has it from there."""
    document = rendered(priority="low-priority", restartPolicy="OnFailure")

    assert [replica["restartPolicy"] for replica in replicas(document).values()] == ["OnFailure", "OnFailure"]
    assert [template["spec"]["priorityClassName"] for template in templates(document)] == ["low-priority"] * 2


@pytest.mark.parametrize(
    ("given", "command"),
    [
        pytest.param({}, "ssh -i /tmp/.ssh/keys/id_rsa -o UserKnownHostsFile=/tmp/.ssh/hosts/known_hosts -vv", id="none"),
        pytest.param(
            {"secretMountPath": "/k"}, "ssh -i /k/id_rsa -o UserKnownHostsFile=/tmp/.ssh/hosts/known_hosts -vv", id="the key"
        ),
        pytest.param(
            {"configMapMountPath": "/h"}, "ssh -i /tmp/.ssh/keys/id_rsa -o UserKnownHostsFile=/h/known_hosts -vv", id="hosts"
        ),
        pytest.param({"sshCmd": "ssh -q", "secretMountPath": "/k"}, "ssh -q", id="the whole command"),
    ],
)
def test_the_command_of_private_clones_follows_its_paths(given, command):
    """So do the mounts, of which the key's alone is read-only."""
    got = container(rendered(sshGitCloneConfig={"secretName": "s", "configMapName": "c", **given}))

    assert got["env"] == [{"name": "GIT_SSH_COMMAND", "value": command}]
    assert [(mount["mountPath"], mount.get("readOnly", False)) for mount in got["volumeMounts"][:2]] == [
        (given.get("secretMountPath", "/tmp/.ssh/keys"), True),
        (given.get("configMapMountPath", "/tmp/.ssh/hosts"), False),
    ]


def test_the_bare_settings_have_the_charts_defaults():
    """One pod that asks for one core and no GPU, in the default queue."""
    document = rendered(BARE)

    assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "default-queue"}
    assert "namespace" not in document["metadata"]
    asked = {"cpu": 1, "nvidia.com/gpu": 0, "memory": "1Gi", "nvidia.com/roce_gdr": 0}
    assert container(document)["resources"] == {"requests": asked, "limits": asked}


def test_a_pod_group_has_the_custom_labels_and_comes_first():
    """Ours: the chart renders none. Its pods name it, and it waits for all of them, or for MIN of an elastic job."""
    labels = [{"key": "team", "value": "a"}]

    document = rendered(podGroup=True, customLabels=labels)
    elastic = rendered(podGroup=True, elastic=True, minPods=2)

    group = document["spec"]["components"][0]["template"]
    assert (group["kind"], group["metadata"], group["spec"]) == (
        "PodGroup",
        {"name": "my-job", "labels": {"team": "a"}},
        {"minMember": 4},
    )
    assert [template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for template in templates(document)] == [
        "my-job"
    ] * 2
    assert elastic["spec"]["components"][0]["template"]["spec"] == {"minMember": 2}
    assert problems(document) == []


# --- Not the chart's slips -------------------------------------------------------------------------------------------------


def test_the_topology_keeps_its_volume_when_it_is_the_only_one():
    """The chart drops it without shared memory, and still tells the variable."""
    document = rendered(topologyFileConfigMap="topo", disableSharedMemory=True)

    assert spec(topologyFileConfigMap="topo", disableSharedMemory=True)["volumes"] == [
        {"name": "topology-volume", "configMap": {"name": "topo"}}
    ]
    assert container(document)["volumeMounts"] == [{"name": "topology-volume", "mountPath": "/var/run/nvidia-topologyd"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(False, "false", id="false, which the chart takes for none"),
        pytest.param(True, "true", id="true"),
        pytest.param("", "", id="the empty string, which the chart takes for none"),
        pytest.param(0, "0", id="zero"),
        pytest.param(1000000, "1000000", id="a million, which the chart writes 1e+06"),
        pytest.param("1e3", "1e3", id="text that looks like a number"),
        pytest.param("y", "y", id="text that looks like a boolean"),
        pytest.param("a: b # c", "a: b # c", id="text that looks like YAML"),
        pytest.param("two\nlines", "two\nlines", id="two lines"),
    ],
)
def test_a_variables_value_is_the_text_that_was_meant(value, text):
    """Written so that every reader of YAML takes it for text."""
    assert container(rendered(environmentVariables=[{"name": "A", "value": value}]))["env"] == [{"name": "A", "value": text}]


@pytest.mark.parametrize("value", [pytest.param(word, id=word) for word in ("true", "yes", "null", "off", "y")])
def test_a_label_stays_text(value):
    """The chart writes it without quotes, and it becomes a boolean or nothing."""
    labels = job(rendered(customLabels=[{"key": "enabled", "value": value}]))["metadata"]["labels"]

    assert labels == {"enabled": value}


def test_a_label_with_a_prefix_is_read_as_kubernetes_does():
    """The chart takes the name for the prefix and refuses `example.com/a_b`."""
    key = "example.com/a_b"

    assert job(rendered(customLabels=[{"key": key, "value": "v"}]))["metadata"]["labels"] == {key: "v"}


def test_the_words_of_an_init_container_stay_words():
    """The chart turns `10` into a number and `a: b` into a mapping."""
    given = {"name": "i", "image": "busybox", "command": ["sleep", 10, "echo a: b", "true"]}

    assert spec(initContainers=[given])["initContainers"] == [{**given, "command": ["sleep", "10", "echo a: b", "true"]}]


def test_both_spellings_tell_where_the_nvme_is():
    """The chart sets one and describes the other; without a path it is the same place for all."""
    document = rendered(mountNVMe={"storage": "1Ti"})

    place = "/workspace/scratch-nvme"
    assert container(document)["env"] == [{"name": n, "value": place} for n in ("NVME_MOUNT_PATH", "MOUNT_PATH_NVME")]
    assert container(document)["volumeMounts"][0]["mountPath"] == place


@pytest.mark.parametrize(
    ("given", "written"),
    [
        pytest.param("90s", "90s", id="as it is"),
        pytest.param("24h", "24h", id="hours"),
        pytest.param("1d", "24h", id="a day, which Go does not know"),
        pytest.param("1h30m", "1h30m", id="a compound, which the chart refuses"),
        pytest.param("PT1M30S", "1m30s", id="ISO"),
        pytest.param(90, "1m30s", id="seconds"),
        pytest.param("1.5h", "1h30m", id="decimals"),
        pytest.param("0s", "0s", id="nothing"),
    ],
)
def test_a_duration_is_written_so_that_the_controller_parses_it(given, written):
    """What it cannot parse it takes for its own default, without a word."""
    assert annotation("admissionGracePeriodDuration", given) == written


def test_the_ttl_may_be_a_week():
    """Its ceiling is another one than that of the graces."""
    assert annotation("successTTLDuration", "7d") == "168h"


def test_what_may_surprise_is_told():
    """It is rendered as the chart does, with a word."""
    variables = [{"name": "A", "value": 1, "secret": {"name": "s", "key": "k"}}, {"name": "A", "value": 2}]

    told = list(notes(settings(limitGpusPerPod=4, environmentVariables=variables)))

    assert [line.partition(":")[0] for line in told] == [
        "limitGpusPerPod",
        "environmentVariables[0].secret",
        "environmentVariables",
    ]
    assert list(notes(settings())) == []


def test_the_first_source_of_a_variable_counts():
    """A literal before a secret, a secret before a ConfigMap, as in the chart."""
    key = {"name": "n", "key": "k"}
    given = [{"name": "A", "value": 1, "secret": key}, {"name": "B", "configmap": key, "secret": key}]

    assert container(rendered(environmentVariables=given))["env"] == [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"secretKeyRef": key}},
    ]


def test_the_script_is_written_line_by_line():
    """A person can read it in the file."""
    text = write_yaml(appwrapper(settings()))

    assert "\n                    cd python-helloworld\n" in text
    assert yaml.safe_load(text) == edited()
