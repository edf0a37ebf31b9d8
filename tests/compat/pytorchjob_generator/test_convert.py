"""The same settings as a job file."""

from __future__ import annotations

import pytest

from rallypoint.backends.kubernetes.manifests.resources import trainer_resources
from rallypoint.compat.pytorchjob_generator import SettingsError, elastic_job
from rallypoint.job import ElasticJob, compile_plan
from rallypoint.job.document import read_yaml, write_yaml
from rallypoint.wire.plan import Entry, Profile
from tests.compat.pytorchjob_generator.samples import BARE, settings
from tests.compat.pytorchjob_generator.test_settings import OF_1_1_5, OF_1_1_12

HEALTH = {"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["ERR", "TESTING", "EVICT"]}


def converted(**changes):
    """The job, read from the file that is written."""
    document = elastic_job(settings(**changes)).document
    return ElasticJob.model_validate(read_yaml(write_yaml(document)))


def role(**changes):
    (only,) = converted(**changes).roles
    return only


def plan(**changes):
    (only,) = compile_plan(converted(**changes))
    return only


def notes(**changes):
    """The settings that are told of."""
    return [note.partition(":")[0] for note in elastic_job(settings(**changes)).notes[1:]]


def complaint(**changes):
    with pytest.raises(SettingsError) as told:
        elastic_job(settings(**changes))
    return str(told.value)


def test_the_base_becomes_a_job_of_fixed_size():
    """AppWrapper's rules: no node is replaced, and a failed worker is a failure of the job, as with torchrun."""
    job = converted()
    compiled = plan()

    assert (job.name, job.profile) == ("my-job", Profile.APPWRAPPER)
    assert (compiled.min_nodes, compiled.max_nodes, compiled.nproc_per_node) == (4, 4, 8)
    assert (compiled.entry, compiled.entrypoint, compiled.args) == (Entry.SCRIPT, "helloworld.py", ())
    assert compiled.setup == ("git clone https://github.com/dbarnett/python-helloworld", "cd python-helloworld")
    assert (compiled.budgets.max_restarts, compiled.budgets.node_replacements, compiled.budgets.retry_limit) == (0, 0, 3)


def test_an_elastic_one_has_our_own_rules():
    """MIN to MAX nodes, restarts and replacements as in any job."""
    compiled = plan(elastic=True, minPods=2, maxRestarts=5)

    assert (compiled.profile, compiled.min_nodes, compiled.max_nodes) == (Profile.LADDER, 2, 4)
    assert (compiled.budgets.max_restarts, compiled.budgets.node_replacements) == (5, 3)


def test_fault_tolerance_has_its_own_names():
    """Each of the eight, in seconds."""
    tolerance = converted(
        admissionGracePeriodDuration="10s",
        warmupGracePeriodDuration="11s",
        failureGracePeriodDuration="1h30m",
        retryPausePeriodDuration="17s",
        forcefulDeletionGracePeriodDuration="1d",
        deletionOnFailureGracePeriodDuration="2s",
        successTTLDuration="600s",
        retryLimit=0,
    ).fault_tolerance

    assert (tolerance.admission_grace_period, tolerance.warmup_grace_period, tolerance.failure_grace_period) == (10, 11, 5400)
    assert (tolerance.retry_pause_period, tolerance.forceful_deletion_grace_period) == (17, 86400)
    assert (tolerance.deletion_on_failure_grace_period, tolerance.success_ttl, tolerance.retry_limit) == (2, 600, 0)


@pytest.mark.parametrize(
    ("program", "entry", "entrypoint", "args"),
    [
        pytest.param("a.py --lr 0.1 'two words'", Entry.SCRIPT, "a.py", ("--lr", "0.1", "two words"), id="a script"),
        pytest.param("-m pkg.train x", Entry.MODULE, "pkg.train", ("x",), id="a module"),
        pytest.param("a.py \\\n  --lr 1\n", Entry.SCRIPT, "a.py", ("--lr", "1"), id="lines that go on"),
        pytest.param("'my script.py'", Entry.SCRIPT, "my script.py", (), id="a script with a space"),
        pytest.param("a.py '$HOME' \\$X", Entry.SCRIPT, "a.py", ("$HOME", "$X"), id="words that a shell leaves alone"),
        pytest.param(
            "a.py --out $OUT", Entry.COMMAND, "sh", ("-c", "exec python -u a.py --out $OUT"), id="variables need a shell"
        ),
        pytest.param('a.py "$(date)"', Entry.COMMAND, "sh", ("-c", 'exec python -u a.py "$(date)"'), id="so do commands"),
    ],
)
def test_the_program_is_what_workers_run(program, entry, entrypoint, args):
    """Plain words as they are; what only a shell can read is read by one in each worker."""
    compiled = plan(mainProgram=program)

    assert (compiled.entry, compiled.entrypoint, compiled.args) == (entry, entrypoint, args)


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        pytest.param("a.py && b.py", "one program with its arguments", id="two programs"),
        pytest.param("a.py > log", "one program with its arguments", id="a redirection"),
        pytest.param("--max_restarts=3 a.py", "set torchrun's flags as fields of the job", id="torchrun's flags"),
        pytest.param("a.py 'x", "balanced quotes", id="an open quote"),
    ],
)
def test_a_program_that_no_job_can_run_is_refused(program, allowed):
    """It says what to write in its place."""
    text = complaint(mainProgram=program)

    assert text.startswith("mainProgram: ")
    assert allowed in text


def test_setup_commands_alone_are_what_each_pod_runs():
    """Once per pod, whatever number of GPUs it has; in a shell that stops at the first error."""
    compiled = plan(mainProgram=None)

    commands = "git clone https://github.com/dbarnett/python-helloworld\ncd python-helloworld"
    assert (compiled.entrypoint, compiled.args) == ("sh", ("-e", "-c", commands))
    assert (compiled.setup, compiled.nproc_per_node) == ((), 1)


def test_settings_that_run_nothing_are_no_job():
    """The chart renders pods that greet."""
    assert complaint(mainProgram=None, setupCommands=None).startswith("mainProgram: null is not allowed; expected ")


def test_pods_look_as_the_charts_do():
    """Image, secrets, where they run and as whom."""
    found = role(
        imagePullSecrets=[{"name": "pull"}],
        hostIgnoreList=["bad"],
        schedulerName="scheduler-plugins-scheduler",
        serviceAccountName="gdr",
        priority="low-priority",
        terminationGracePeriodSeconds=60,
        initContainers=[{"name": "i", "image": "busybox", "command": ["true"]}],
    )

    assert found.image == "ghcr.io/foundation-model-stack/base:pytorch-latest-nightly-20230126"
    assert (found.image_pull_policy, found.image_pull_secrets) == ("IfNotPresent", ("pull",))
    assert (found.host_ignore_list, found.scheduler_name) == (("bad",), "scheduler-plugins-scheduler")
    assert (found.service_account, found.priority_class, found.queue) == ("gdr", "low-priority", "default-queue")
    assert found.termination_grace_period == 60
    assert found.init_containers == ({"name": "i", "image": "busybox", "command": ["true"]},)
    assert found.security_context == {"capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": False}
    required = found.affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [HEALTH]}]}


def test_labels_and_annotations_are_the_jobs():
    """Custom labels, health checks, and the network of the pods."""
    job = converted(
        customLabels=[{"key": "team", "value": "a"}], autopilotHealthChecks=["gpu-pcie-bw"], multiNicNetworkName="net"
    )

    assert job.labels == {"team": "a", "autopilot": "", "gpu-pcie-bw": ""}
    assert job.annotations == {"k8s.v1.cni.cncf.io/networks": "net"}


def test_variables_go_where_their_kind_belongs():
    """Literals to the workers, references to the pod; the last of a name counts."""
    key = {"name": "n", "key": "k"}
    found = role(
        environmentVariables=[
            {"name": "A", "value": 1},
            {"name": "B", "secret": key},
            {"name": "C", "value": "old"},
            {"name": "C", "configmap": key},
        ],
        mountNVMe={"storage": "1Ti"},
        envFrom=[{"secretRef": {"name": "s"}}],
    )

    place = "/workspace/scratch-nvme"
    assert found.env == {"NVME_MOUNT_PATH": place, "MOUNT_PATH_NVME": place, "A": "1"}
    assert [variable["name"] for variable in found.pod_env] == ["B", "C"]
    assert found.env_from == ({"secretRef": {"name": "s"}},)


def test_a_variable_of_each_worker_cannot_be_the_jobs():
    """It would train with a wrong world; the error names the setting."""
    assert complaint(environmentVariables=[{"name": "RANK", "value": 1}]).startswith("environmentVariables[0].name: 'RANK'")


@pytest.mark.parametrize(
    ("changes", "memory", "limit"),
    [
        pytest.param({}, "1Gi", "1Gi", id="a power of two"),
        pytest.param({"totalMemoryPerPod": "3M"}, "3000000", "3000000", id="not even one MiB for each half"),
        pytest.param({"limitMemoryPerPod": "4Gi"}, "1Gi", "4Gi", id="a limit of its own"),
    ],
)
def test_memory_with_shared_memory_is_what_was_asked_for(changes, memory, limit):
    """The chart's shared memory is a part of the pod's memory, a job file's comes on top of it."""
    resources = trainer_resources(role(**changes), {})

    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (memory, limit)


def test_volumes_are_mounted_where_they_were():
    """All but shared memory, which every node has."""
    found = role(volumes=[{"name": "data", "claimName": "c", "mountPath": "/data"}], topologyFileConfigMap="topo")

    assert [volume["name"] for volume in found.volumes] == ["topology-volume", "data"]
    assert [mount["mountPath"] for mount in found.volume_mounts] == ["/var/run/nvidia-topologyd", "/data"]


def test_what_is_another_thing_in_a_job_is_told():
    """No setting is dropped in silence."""
    changed = {
        "disableSharedMemory": True,
        "podGroup": True,
        "restartPolicy": "OnFailure",
        "schedulerName": "sakkara",
        "terminationGracePeriodSeconds": 0,
    }

    assert notes(namespace=None) == []
    assert notes() == ["namespace"]
    assert sorted(notes(namespace=None, **changed)) == sorted(changed)
    assert plan(**changed).budgets.max_restarts == 3


@pytest.mark.parametrize("key", [pytest.param(key, id=key) for key in [*OF_1_1_5, *OF_1_1_12]])
def test_every_setting_leaves_a_trace(key):
    """In the file or in a note: of RDMA's name where there is RDMA."""
    value = {**OF_1_1_5, **OF_1_1_12}[key]

    assert elastic_job(settings(**{"numRoceGdr": 2, key: value})) != elastic_job(settings(numRoceGdr=2))


def test_two_settings_and_a_program_are_a_job():
    """What is not set is not written."""
    document = elastic_job(settings(BARE, mainProgram="a.py")).document

    assert list(document) == [
        *("name", "profile", "entrypoint", "nproc_per_node", "nodes", "resources", "image", "image_pull_policy"),
        *("security_context", "affinity", "priority_class", "queue", "recovery"),
    ]
