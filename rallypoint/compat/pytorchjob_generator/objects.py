"""The objects that the chart renders for settings: PyTorchJob, AppWrapper and their pods. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rallypoint.compat.pytorchjob_generator.script import POD_NAME, script, secret_variable
from rallypoint.compat.pytorchjob_generator.settings import GitSsh, Settings, Variable
from rallypoint.job.annotations import PREFIX
from rallypoint.wire import env

__all__ = [
    "CHART_VERSION",
    "GENERATED_VOLUMES",
    "NCCL_TOPOLOGY",
    "POD_GROUP",
    "SHM",
    "appwrapper",
    "custom_labels",
    "environment",
    "expressions",
    "health_labels",
    "mounts",
    "pod_annotations",
    "pod_labels",
    "pod_template",
    "policies",
    "pytorchjob",
    "roce",
    "security_context",
    "sources",
    "volumes",
]

NCCL_TOPOLOGY = "NCCL_TOPO_FILE"
POD_GROUP = "scheduling.x-k8s.io/pod-group"

_TOPOLOGY, _NVME, _SSH_KEY, _SSH_HOSTS, SHM = GENERATED_VOLUMES = (
    "topology-volume",
    "ephemeral-odf-lvm-vg1",
    "private-ssh-git-deploy-key",
    "github-known-hosts",
    "dshm",
)
_TOPOLOGY_FOLDER = "/var/run/nvidia-topologyd"
_NVME_FOLDER = "/workspace/scratch-nvme"
_KEYS_FOLDER, _HOSTS_FOLDER = "/tmp/.ssh/keys", "/tmp/.ssh/hosts"  # noqa: S108  the chart's places in the pod
_ROCE = "nvidia.com/roce_gdr"

#: The chart's environment tells one of them, its description the other.
_NVME_VARIABLES = ("NVME_MOUNT_PATH", "MOUNT_PATH_NVME")


def pod_template(settings: Settings) -> dict[str, Any]:
    """Return the template; its metadata is left out where there is none."""
    metadata = _given(labels=pod_labels(settings), annotations=pod_annotations(settings))
    return {**({"metadata": metadata} if metadata else {}), "spec": _spec(settings)}


def custom_labels(settings: Settings) -> dict[str, str]:
    """Return the labels of every object."""
    return {label.key: label.value for label in settings.custom_labels}


def pod_labels(settings: Settings) -> dict[str, str]:
    """Return the labels of the pods."""
    group = {POD_GROUP: settings.job_name} if settings.pod_group else {}
    return {**custom_labels(settings), **health_labels(settings), **group}


def health_labels(settings: Settings) -> dict[str, str]:
    """Return the labels that ask for checks of the machine."""
    return dict.fromkeys(("autopilot", *settings.health_checks), "") if settings.health_checks else {}


def pod_annotations(settings: Settings) -> dict[str, str]:
    """Return the annotations of the pods."""
    return {"k8s.v1.cni.cncf.io/networks": settings.network} if settings.network else {}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _spec(settings: Settings) -> dict[str, Any]:
    grace = settings.termination_grace
    containers = [container.model_dump(mode="json") for container in settings.init_containers]
    return {
        **_given(serviceAccountName=settings.service_account),
        "imagePullSecrets": [{"name": secret.name} for secret in settings.image_pull_secrets],
        **_given(initContainers=containers),
        **({} if grace is None else {"terminationGracePeriodSeconds": grace}),
        **_given(schedulerName=settings.scheduler),
        "priorityClassName": settings.priority,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": list(expressions(settings))}]
                }
            }
        },
        "volumes": list(volumes(settings)),
        "containers": [_container(settings)],
    }


def expressions(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield which machines the pods keep off: those found unhealthy, and those that the settings name."""
    yield {"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn", "values": ["ERR", "TESTING", "EVICT"]}
    if settings.ignored_hosts:
        yield {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(settings.ignored_hosts)}


def _container(settings: Settings) -> dict[str, Any]:
    return {
        "name": "pytorch",
        "image": settings.container_image,
        "imagePullPolicy": settings.image_pull_policy or "IfNotPresent",
        **_given(securityContext=security_context(settings)),
        **_given(envFrom=list(sources(settings))),
        "env": [*_downward(settings), *_secret(settings), *environment(settings)],
        "volumeMounts": list(mounts(settings)),
        "resources": _resources(settings),
        "command": ["sh", "-c", script(settings)],
    }


def security_context(settings: Settings) -> dict[str, Any]:
    """Return what RDMA needs: memory that is locked."""
    return {"capabilities": {"add": ["IPC_LOCK"]}} if settings.num_roce or settings.service_account == "gdr" else {}


def roce(settings: Settings) -> dict[str, int]:
    """Return the RoCE devices by their resource's name."""
    return {settings.roce_name or _ROCE: settings.num_roce}


def _resources(settings: Settings) -> dict[str, Any]:
    # 0 is no limit of GPUs but none given, as in the chart.
    return {
        "requests": {
            "cpu": settings.num_cpus,
            "nvidia.com/gpu": settings.num_gpus,
            "memory": settings.memory,
            **roce(settings),
        },
        "limits": {
            "cpu": settings.limit_cpus or settings.num_cpus,
            "nvidia.com/gpu": settings.limit_gpus or settings.num_gpus,
            "memory": settings.limit_memory or settings.memory,
            **roce(settings),
        },
    }


# --- Environment -----------------------------------------------------------------------------------------------------------


def sources(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the secrets and ConfigMaps that are variables as a whole."""
    yield from (source.document for source in settings.sources)
    if settings.nccl_map:
        yield {"configMapRef": {"name": settings.nccl_map}}


def _downward(settings: Settings) -> Iterator[dict[str, Any]]:
    if settings.scheduler == "sakkara":
        yield _field("SAKKARA_RANK", "metadata.labels['sakkara.member.rank']")
    if settings.elastic:
        yield _field(POD_NAME, "metadata.name")


def _secret(settings: Settings) -> Iterator[dict[str, Any]]:
    if settings.elastic and not settings.insecure_token and env.SECRET not in {each.name for each in settings.variables}:
        yield secret_variable(settings)


def environment(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the variables of the container that do not ask for facts of its pod, in the order in which a later one wins."""
    if settings.topology_map:
        yield {"name": NCCL_TOPOLOGY, "value": f"{_TOPOLOGY_FOLDER}/virtualTopology.xml"}
    if settings.nvme:
        yield from ({"name": name, "value": settings.nvme.mount_path or _NVME_FOLDER} for name in _NVME_VARIABLES)
    yield from (_variable(variable) for variable in settings.variables)
    if settings.git_ssh:
        yield {"name": "GIT_SSH_COMMAND", "value": _ssh_command(settings.git_ssh)}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _variable(variable: Variable) -> dict[str, Any]:
    if variable.value is not None:
        return {"name": variable.name, "value": variable.value}
    if variable.secret is not None:
        return {"name": variable.name, "valueFrom": {"secretKeyRef": variable.secret.model_dump()}}
    assert variable.configmap is not None
    return {"name": variable.name, "valueFrom": {"configMapKeyRef": variable.configmap.model_dump()}}


def _ssh_command(git: GitSsh) -> str:
    if git.ssh_cmd:
        return git.ssh_cmd
    key = shlex.quote(f"{git.secret_mount_path or _KEYS_FOLDER}/id_rsa")
    hosts = shlex.quote(f"{git.config_map_mount_path or _HOSTS_FOLDER}/known_hosts")
    return f"ssh -i {key} -o UserKnownHostsFile={hosts} -vv"


# --- Volumes ---------------------------------------------------------------------------------------------------------------


def mounts(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield where each volume is mounted, in the order of the volumes."""
    if settings.topology_map:
        yield {"name": _TOPOLOGY, "mountPath": _TOPOLOGY_FOLDER}
    if settings.nvme:
        yield {"name": _NVME, "mountPath": settings.nvme.mount_path or _NVME_FOLDER}
    yield from ({"name": volume.name, "mountPath": volume.mount_path} for volume in settings.volumes)
    git = settings.git_ssh
    if git:
        yield {"name": _SSH_KEY, "readOnly": True, "mountPath": git.secret_mount_path or _KEYS_FOLDER}
        yield {"name": _SSH_HOSTS, "mountPath": git.config_map_mount_path or _HOSTS_FOLDER}
    if not settings.disable_shared_memory:
        yield {"name": SHM, "mountPath": "/dev/shm"}  # noqa: S108  its place in the pod


def volumes(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the volumes of a pod."""
    if settings.topology_map:
        yield {"name": _TOPOLOGY, "configMap": {"name": settings.topology_map}}
    if settings.nvme:
        yield _nvme_volume(settings.nvme.storage)
    for volume in settings.volumes:
        yield {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim_name}}
    git = settings.git_ssh
    if git:
        yield {"name": _SSH_KEY, "secret": {"secretName": git.secret_name, "optional": False}}
        yield {"name": _SSH_HOSTS, "configMap": {"name": git.config_map_name}}
    if not settings.disable_shared_memory:
        yield {"name": SHM, "emptyDir": {"medium": "Memory"}}


def _nvme_volume(storage: str) -> dict[str, Any]:
    claim = {
        "storageClassName": "odf-lvm-vg1",
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage}},
    }
    return {"name": _NVME, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


#: Of the pytorchjob-generator whose objects these are.
CHART_VERSION = "1.1.12"

_VERSION = "workload.codeflare.dev.mlbatch/pytorchGeneratorVersion"
_QUEUE = "kueue.x-k8s.io/queue-name"


def appwrapper(settings: Settings) -> dict[str, Any]:
    """Return the AppWrapper of a job."""
    queue = {_QUEUE: settings.queue_name} if settings.queue_name else {}
    labels = {**queue, **custom_labels(settings)}
    group = [_pod_group(settings)] if settings.pod_group else []
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": settings.job_name,
            **({"namespace": settings.namespace} if settings.namespace else {}),
            "annotations": {_VERSION: CHART_VERSION, **{f"{PREFIX}{key}": text for key, text in policies(settings).items()}},
            **({"labels": labels} if labels else {}),
        },
        "spec": {"components": [{"template": component} for component in (*group, pytorchjob(settings))]},
    }


def pytorchjob(settings: Settings) -> dict[str, Any]:
    """Return the PyTorchJob of a job as it stands in its AppWrapper: without a namespace of its own."""
    replicas = {"Master": 1, "Worker": settings.num_pods - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(settings),
        "spec": {
            "pytorchReplicaSpecs": {
                kind: {
                    "replicas": number,
                    "restartPolicy": settings.restart_policy,
                    "template": pod_template(settings),
                }
                for kind, number in replicas.items()
                if number
            }
        },
    }


def _metadata(settings: Settings) -> dict[str, Any]:
    labels = custom_labels(settings)
    return {"name": settings.job_name, **({"labels": labels} if labels else {})}


def _pod_group(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": _metadata(settings),
        "spec": {"minMember": settings.least_pods},
    }


def policies(settings: Settings) -> dict[str, str]:
    """Return the fault-tolerance settings that are given, by the annotation's name, in the words of AppWrapper's controller."""
    given: dict[str, str | int | None] = {
        "admissionGracePeriodDuration": settings.admission_grace,
        "warmupGracePeriodDuration": settings.warmup_grace,
        "failureGracePeriodDuration": settings.failure_grace,
        "retryPausePeriodDuration": settings.retry_pause,
        "retryLimit": settings.retry_limit,
        "forcefulDeletionGracePeriodDuration": settings.forceful_deletion_grace,
        "deletionOnFailureGracePeriodDuration": settings.deletion_on_failure_grace,
        "successTTLDuration": settings.success_ttl,
    }
    return {key: str(value) for key, value in given.items() if value is not None}
