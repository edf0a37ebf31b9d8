"""Which settings are read, and how those that are wrong are told."""

from __future__ import annotations

import pytest

from rallypoint.compat.pytorchjob_generator import Settings, SettingsError, read_settings
from rallypoint.compat.pytorchjob_generator.load import keys_of
from tests.compat.pytorchjob_generator.samples import BARE, BASE, settings

#: Every key of chart 1.1.5's tables, with a value that is not the default.
OF_1_1_5 = {
    "jobName": "other-job",
    "namespace": "team1",
    "queueName": "my-queue",
    "priority": "high-priority",
    "customLabels": [{"key": "example.com/project", "value": "x1"}],
    "containerImage": "quay.io/a/b:1",
    "imagePullSecrets": [{"name": "secret-one"}],
    "numPods": 2,
    "numCpusPerPod": 4,
    "numGpusPerPod": 1,
    "totalMemoryPerPod": "200M",
    "limitCpusPerPod": "4500m",
    "limitGpusPerPod": 1,
    "limitMemoryPerPod": "1Gi",
    "environmentVariables": [{"name": "A", "value": 1}],
    "sshGitCloneConfig": {"secretName": "a", "configMapName": "b", "sshCmd": "ssh -v"},
    "setupCommands": ["true"],
    "mainProgram": "train.py --lr 0.1",
    "volumes": [{"name": "data", "claimName": "claim", "mountPath": "/data"}],
    "roceGdrResName": "example.com/roce",
    "numRoceGdr": 1,
    "topologyFileConfigMap": "topo",
    "ncclGdrEnvConfigMap": "nccl",
    "multiNicNetworkName": "net",
    "disableSharedMemory": True,
    "mountNVMe": {"storage": "1Ti"},
    "initContainers": [{"name": "i", "image": "busybox", "command": ["true"]}],
    "autopilotHealthChecks": ["gpu-pcie-bw"],
    "hostIgnoreList": ["bad-host"],
    "bypassCoscheduler": True,
    "serviceAccountName": "gdr",
    "admissionGracePeriodDuration": "1m",
    "warmupGracePeriodDuration": "2m",
    "failureGracePeriodDuration": "3m",
    "retryPausePeriodDuration": "4m",
    "retryLimit": 5,
    "forcefulDeletionGracePeriodDuration": "6m",
    "deletionOnFailureGracePeriodDuration": "7m",
    "restartPolicy": "OnFailure",
    "terminationGracePeriodSeconds": 8,
}

#: What chart 1.1.12 has beside it.
OF_1_1_12 = {
    "imagePullPolicy": "Never",
    "envFrom": [{"secretRef": {"name": "s", "optional": True}, "prefix": "S_"}, {"configMapRef": {"name": "c"}}],
    "successTTLDuration": "9m",
    "schedulerName": "default-scheduler",
}

OURS = {"elastic": True, "minPods": 1, "maxRestarts": 2, "insecureToken": True, "podGroup": True}

#: Settings that null takes back to what they are without it; of the queue there is then none.
NULLABLE = sorted(
    {*OF_1_1_5, *OF_1_1_12}
    - {"jobName", "priority", "containerImage", "numPods", "numCpusPerPod", "numGpusPerPod", "totalMemoryPerPod"}
    - {"numRoceGdr", "disableSharedMemory", "restartPolicy"}
)


def complaint(**changes):
    """The whole text of the error that the base with these changes is."""
    with pytest.raises(SettingsError) as told:
        settings(**changes)
    return str(told.value)


@pytest.mark.parametrize("key", [pytest.param(key, id=key) for key in [*OF_1_1_5, *OF_1_1_12]])
def test_every_key_of_the_charts_is_read(key):
    """Each by itself differs from the base, whatever the others are."""
    value = {**OF_1_1_5, **OF_1_1_12}[key]

    assert settings(**{key: value}) != settings()


def test_no_key_is_forgotten_and_none_is_made_up():
    """The tables of both charts, and ours."""
    assert set(keys_of(Settings)) == {*OF_1_1_5, *OF_1_1_12, *OURS}


def test_all_keys_go_together():
    """Nothing in one of them forbids another."""
    both = {**OF_1_1_5, **OF_1_1_12, **OURS}

    assert read_settings(both).job_name == "other-job"


def test_two_settings_are_enough():
    """The rest has the chart's defaults."""
    bare = read_settings(BARE)

    assert (bare.queue_name, bare.priority, bare.num_pods, bare.num_cpus) == ("default-queue", "default-priority", 1, 1)
    assert (bare.num_gpus, bare.memory, bare.restart_policy, bare.num_roce) == (0, "1Gi", "Never", 0)
    assert (bare.disable_shared_memory, bare.setup_commands, bare.main_program, bare.elastic) == (False, (), None, False)


@pytest.mark.parametrize("key", [pytest.param(key, id=key) for key in NULLABLE])
def test_null_takes_a_setting_back(key):
    """As a key without a value does in a settings.yaml that was copied from the chart's values."""
    without = {name: value for name, value in BASE.items() if name != key}
    expected = read_settings(without)

    assert settings(**{key: None}) == (expected.model_copy(update={"queue_name": None}) if key == "queueName" else expected)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        pytest.param("numPod", "the most similar setting is 'numPods'", id="a letter is missing"),
        pytest.param("num_pods", "the most similar setting is 'numPods'", id="another spelling"),
        pytest.param("MOUNTNVME", "the most similar setting is 'mountNVMe'", id="another case"),
        pytest.param("image", "the most similar setting is 'containerImage'", id="Kubernetes' word"),
        pytest.param("nodes", "the most similar setting is 'numPods'", id="the word of a job file"),
        pytest.param("bypassCosheduler", "the most similar setting is 'bypassCoscheduler'", id="a key of the older chart"),
        pytest.param("zzz", "the most similar setting is '", id="nothing like it"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(key, advice):
    """A setting that would have no effect is never dropped."""
    assert complaint(**{key: 1}).startswith(f"{key}: is not a known setting; {advice}")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({"mountNVMe": {"storage": "1Gi", "mountpath": "/a"}}, "mountNVMe.mountpath: is not a known", id="NVMe"),
        pytest.param(
            {"volumes": [{"nam": "a"}]},
            "volumes[0].nam: is not a known setting; the most similar setting is 'name'",
            id="volume",
        ),
        pytest.param({"customLabels": [{"key": "a", "value": "b", "c": 1}]}, "customLabels[0].c: is not a known", id="label"),
    ],
)
def test_unknown_keys_inside_are_refused_too(changes, told):
    """The chart passes over most of them."""
    assert told in complaint(**changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            pytest.param("jobName", value, id=f"jobName {value!r}")
            for value in ("", "Job", "a_b", "a-", "-a", "a" * 51, 7, None)
        ),
        *(pytest.param("namespace", value, id=f"namespace {value!r}") for value in ("", "Team", "a.b", "a" * 64)),
        *(pytest.param("queueName", value, id=f"queueName {value!r}") for value in ("", "1st", "a_b")),
        *(pytest.param("priority", value, id=f"priority {value!r}") for value in ("urgent", "", None)),
        *(pytest.param("containerImage", value, id=f"containerImage {value!r}") for value in ("", "a b", None, 3)),
        *(pytest.param("numPods", value, id=f"numPods {value!r}") for value in (0, -1, "4", 1.5, True, None)),
        *(
            pytest.param("numCpusPerPod", value, id=f"numCpusPerPod {value!r}")
            for value in (0, -1, "1", "0.5", 1.5, "0m", "m", "1.5Gi", True, None)
        ),
        *(pytest.param("numGpusPerPod", value, id=f"numGpusPerPod {value!r}") for value in (-1, "8", None)),
        *(pytest.param("totalMemoryPerPod", value, id=f"memory {value!r}") for value in ("1024", "1.5Gi", 1024, "0Gi", "1Gib")),
        *(pytest.param("limitCpusPerPod", value, id=f"limitCpusPerPod {value!r}") for value in (0, "1", "100m")),
        *(pytest.param("limitMemoryPerPod", value, id=f"limitMemoryPerPod {value!r}") for value in ("2048", "1023Mi")),
        pytest.param("limitGpusPerPod", -1, id="limitGpusPerPod"),
        pytest.param("numRoceGdr", -1, id="numRoceGdr"),
        pytest.param("roceGdrResName", "roce gdr", id="roceGdrResName"),
        pytest.param("imagePullPolicy", "Sometimes", id="imagePullPolicy"),
        pytest.param("imagePullSecrets", ["secret"], id="imagePullSecrets without a name"),
        pytest.param("restartPolicy", "ExitCode", id="restartPolicy"),
        pytest.param("schedulerName", "volcano", id="schedulerName"),
        pytest.param("serviceAccountName", "A", id="serviceAccountName"),
        pytest.param("disableSharedMemory", "true", id="a boolean in quotes"),
        pytest.param("terminationGracePeriodSeconds", -1, id="terminationGracePeriodSeconds"),
        *(pytest.param("retryLimit", value, id=f"retryLimit {value!r}") for value in (-1, 101, "3", True)),
        *(
            pytest.param("admissionGracePeriodDuration", value, id=f"admission {value!r}")
            for value in ("1x", "-1m", "", "25h", "2d", True)
        ),
        *(pytest.param("successTTLDuration", value, id=f"success {value!r}") for value in ("0s", "169h")),
        pytest.param("setupCommands", "cd a", id="setupCommands that is no list"),
        pytest.param("setupCommands", [{"echo": "a"}], id="a command that YAML reads as a mapping"),
        pytest.param("mainProgram", "a.py\nb.py", id="two programs"),
        pytest.param("hostIgnoreList", [""], id="a host without a name"),
    ],
)
def test_a_value_out_of_bounds_is_refused(key, value):
    """The error begins with the setting and shows the value and what is allowed."""
    text = complaint(**{key: value})

    assert text.startswith(key)
    assert "is not allowed; expected " in text


@pytest.mark.parametrize(
    ("label", "path"),
    [
        pytest.param({"value": "v"}, "customLabels[0].key", id="no key"),
        pytest.param({"key": "k"}, "customLabels[0].value", id="no value"),
        pytest.param({"key": "K", "value": "v"}, "customLabels[0].key", id="a capital in the key"),
        pytest.param({"key": "k-", "value": "v"}, "customLabels[0].key", id="a key that ends with a dash"),
        pytest.param({"key": "k" * 64, "value": "v"}, "customLabels[0].key", id="a name too long"),
        pytest.param({"key": f"{'p' * 254}/k", "value": "v"}, "customLabels[0].key", id="a prefix too long"),
        pytest.param({"key": "a_b/k", "value": "v"}, "customLabels[0].key", id="a prefix that is no domain"),
        pytest.param({"key": "a/b/c", "value": "v"}, "customLabels[0].key", id="two prefixes"),
        pytest.param({"key": "k", "value": ""}, "customLabels[0].value", id="an empty value"),
        pytest.param({"key": "k", "value": "1st"}, "customLabels[0].value", id="a value that begins with a digit"),
        pytest.param({"key": "k", "value": "V"}, "customLabels[0].value", id="a capital in the value"),
        pytest.param({"key": "k", "value": "v" * 64}, "customLabels[0].value", id="a value too long"),
        pytest.param({"key": "k", "value": True}, "customLabels[0].value", id="a value that is no string"),
        pytest.param({"key": "autopilot", "value": "v"}, "customLabels[0].key", id="a label that is rendered"),
    ],
)
def test_a_label_that_kubernetes_or_the_chart_refuses_is_refused(label, path):
    """Prefix and name have their own bounds, in the order that Kubernetes has them in."""
    assert complaint(customLabels=[label]).startswith(path)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        pytest.param({"numPods": 1, "numRoceGdr": 1}, "numRoceGdr: 1", id="RDMA on one pod"),
        pytest.param({"mountNVMe": {"mountPath": "/a"}}, "mountNVMe.storage: is missing", id="NVMe without a size"),
        pytest.param({"sshGitCloneConfig": {"secretName": "a"}}, "sshGitCloneConfig.configMapName: is missing", id="ssh"),
        pytest.param({"volumes": [{"name": "a", "mountPath": "/a"}]}, "volumes[0].claimName: is missing", id="no claim"),
        pytest.param(
            {"initContainers": [{"name": "a", "image": "b"}]}, "initContainers[0].command: is missing", id="no command"
        ),
        pytest.param(
            {"initContainers": [{"name": "a", "image": "b", "command": "sh -c x"}]}, "initContainers[0].command", id="a string"
        ),
        pytest.param({"environmentVariables": [{"value": 1}]}, "environmentVariables[0].name: is missing", id="no name"),
        pytest.param({"environmentVariables": [{"name": "A"}]}, "environmentVariables[0].value: null", id="no value"),
        pytest.param(
            {"environmentVariables": [{"name": "A", "secret": {"name": "s"}}]},
            "environmentVariables[0].secret.key: is missing",
            id="a secret without a key",
        ),
        pytest.param({"envFrom": [{"secretRef": None, "name": "s"}]}, "envFrom[0].name: 's'", id="as in the chart's example"),
        pytest.param({"envFrom": [{"prefix": "A_"}]}, "envFrom[0]", id="a source of nothing"),
        pytest.param(
            {"bypassCoscheduler": True, "schedulerName": "sakkara"}, "bypassCoscheduler: true", id="two schedulers at once"
        ),
        pytest.param(
            {"volumes": [{"name": n, "claimName": "c", "mountPath": "/a"} for n in "ab"]}, "volumes: '/a'", id="one path twice"
        ),
        pytest.param(
            {"volumes": [{"name": "a", "claimName": "c", "mountPath": p} for p in ("/a", "/b")]},
            "volumes[1].name: 'a'",
            id="one volume twice",
        ),
        pytest.param({"volumes": [{"name": "dshm", "claimName": "c", "mountPath": "/a"}]}, "volumes[0].name", id="our volume"),
        pytest.param({"insecureToken": True}, "insecureToken: true", id="no secret of a job that needs none"),
        pytest.param({"minPods": 2}, "minPods: 2", id="MIN of a job that is not elastic"),
        pytest.param({"maxRestarts": 2}, "maxRestarts: 2", id="restarts of a job that is not elastic"),
        pytest.param({"elastic": True, "minPods": 5}, "minPods: 5", id="MIN above MAX"),
        pytest.param({"elastic": True, "mainProgram": None}, "elastic: true", id="nothing that is elastic"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changes, path):
    """Each error names the setting that is to be changed."""
    assert complaint(**changes).startswith(path)


def test_every_problem_is_told_at_once():
    """A person mends a file in one go."""
    lines = complaint(numPods=0, jobNam="x", priority="urgent").splitlines()

    assert [line.partition(":")[0] for line in lines] == ["priority", "numPods", "jobNam"]


@pytest.mark.parametrize("document", [pytest.param(None, id="nothing"), pytest.param(["a"], id="a list")])
def test_settings_are_a_mapping(document):
    """An empty file is told what belongs there."""
    with pytest.raises(SettingsError, match="a mapping with jobName and containerImage"):
        read_settings(document)


def test_an_error_names_its_file():
    """The file stands above its problems."""
    with pytest.raises(SettingsError) as told:
        read_settings({"jobName": "a"})

    assert str(told.value.with_source("s.yaml")).splitlines() == [
        "s.yaml: invalid settings:",
        "containerImage: is missing; expected a string without white space, not empty",
    ]
