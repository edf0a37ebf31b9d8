"""One role of a job: its program, number of nodes, resources and pods."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from rallypoint.job.part import Model, extended
from rallypoint.job.rules import (
    AMOUNT,
    ARGUMENT,
    COMMAND_LINE,
    CONTAINER,
    ENTRYPOINT,
    FLAG,
    LIST,
    MAPPING,
    NAME,
    NODES,
    NUMA,
    PATH,
    QUANTITY,
    RESOURCE,
    SCALAR,
    SHARE,
    VARIABLE,
    WORD,
    choice,
    duration,
    refusal,
    whole,
)
from rallypoint.job.values import Entrypoint, write_nodes
from rallypoint.wire.node_range import MAX_NODES, MAX_WORKERS, NodeRange
from rallypoint.wire.plan import Entry

__all__ = [
    "DEFAULT_ROLE",
    "ELASTIC",
    "SIMPLE",
    "InstanceResources",
    "NodeGroupFailover",
    "Resources",
    "Role",
    "Texts",
    "resolve",
]

#: Name of the role in the short form, at the top level of the document.
DEFAULT_ROLE = "trainer"

#: How a role is launched: as one world of workers, or as instances that do not know each other.
ELASTIC, SIMPLE = "elastic", "simple"

Texts = Annotated[dict[Annotated[str, WORD], Annotated[str, SCALAR]], MAPPING]
_Containers = Annotated[tuple[Annotated[dict[str, Any], CONTAINER], ...], LIST]
_Extended = Annotated[dict[Annotated[str, RESOURCE], Annotated[str, QUANTITY]], MAPPING]
_Amounts = Annotated[dict[Annotated[str, WORD], Annotated[int | float, AMOUNT]], MAPPING]
_Environment = Annotated[dict[Annotated[str, VARIABLE], Annotated[str, SCALAR]], MAPPING]


class Resources(Model):
    """Resources that one node requests, as Kubernetes quantities. By default, each limit is equal to the request."""

    cpu: Annotated[str, QUANTITY] = ""
    """CPU cores: `4`, `500m`."""
    memory: Annotated[str, QUANTITY] = ""
    """Memory in bytes: `8Gi`, `512M`."""
    cpu_limit: Annotated[str, QUANTITY] = ""
    """Maximum number of CPU cores that a node may use."""
    memory_limit: Annotated[str, QUANTITY] = ""
    """Maximum memory that a node may use, in bytes; a node that uses more is killed."""
    shm: Annotated[str, QUANTITY] = ""
    """Size of /dev/shm, which contains progress reports and snapshots; Rallypoint adds this size to `memory`. Default: 64Mi per
    worker.
    """
    gpus: Annotated[int, whole(0, unit="GPUs")] = 0
    """Number of GPUs; both the request and the limit."""
    gpu_resource: Annotated[str, RESOURCE] = ""
    """Name of the Kubernetes resource for GPUs. Default: `nvidia.com/gpu`, or `huawei.com/Ascend910` with `ascend-npu`."""
    extended: _Extended = Field(default_factory=dict)
    """Amounts of other extended resources, by the name of the resource: `rdma/hca: 1`."""


class InstanceResources(Model):
    """Resources that one instance requests, in a job with several roles. An instance of an elastic role is one worker."""

    other_names: ClassVar[Mapping[str, str]] = {"gpu": "gpus"}

    cpu: Annotated[str, QUANTITY] = ""
    """CPU cores: `4`, `500m`."""
    memory: Annotated[str, QUANTITY] = ""
    """Memory in bytes: `8Gi`, `512M`."""
    disk: Annotated[str, QUANTITY] = ""
    """Local storage in bytes."""
    gpus: Annotated[Fraction | None, SHARE] = None
    """Number of devices, or a fraction of a device that several instances share. Default in a group of N roles: 1/N."""
    user_defined: _Amounts = Field(default_factory=dict)
    """Amounts of other resources, by the name of the resource."""


class NodeGroupFailover(Model):
    """Nodes that are replaced together, because their Kubernetes nodes have the same value of a label."""

    label: Annotated[str, WORD] = ""
    """Key of a label of the Kubernetes nodes, such as `topology.kubernetes.io/rack`. The supervisor must be allowed to read
    Kubernetes nodes (`rallypoint manifests rbac --nodes`).
    """
    timeout: Annotated[float | None, duration(least=30.0)] = None
    """How long the replacement of a node may stay pending; afterwards, Rallypoint replaces all nodes whose Kubernetes nodes
    have the same value of `label`, and avoids Kubernetes nodes with this value. Default: 5m.
    """


class _Role(Model):
    """A part of the job with its own entrypoint and resources. The fields of a single role can be written at the top level."""

    name: Annotated[str, NAME] = DEFAULT_ROLE
    """Name of the role, unique within the job. If `roles` is a mapping, the key is the name."""
    entrypoint: Annotated[Entrypoint, ENTRYPOINT]
    """Program of each worker: `train.py`, `-m pkg.train`, `pkg.train:run`, `[bash, -c, ...]` or
    `{script|module|function|command: ...}`. A function is called without arguments; of a class, Rallypoint calls the
    method `run()`.
    """
    args: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Arguments of the program; numbers become strings."""
    nodes: Annotated[NodeRange, NODES] = NodeRange(min=1, max=1)
    """Number of nodes: `N`, or a minimum and a maximum, `MIN:MAX`."""
    node_unit: Annotated[int, whole(1, MAX_NODES, unit="nodes")] = 1
    """The number of nodes in a round is a multiple of `node_unit`; MIN and MAX in `nodes` must also be multiples."""
    nproc_per_node: Annotated[int, whole(1, MAX_WORKERS, unit="workers")] = 1
    """Number of workers per node."""
    auto_config: Annotated[bool | None, FLAG] = None
    """True: each node runs one worker per device (an argument of DLRover)."""
    accelerator: Annotated[str, choice("nvidia.com/gpu", "ascend-npu", "cpu")] = ""
    """Kind of the devices (an argument of DLRover). Default: `nvidia.com/gpu`."""
    numa_affinity: Annotated[str, NUMA] = ""
    """Binds workers to the CPUs near their GPU, by a mode of torchrun's `--numa-binding`: `node` (same as `true`), `socket`,
    `exclusive` or `core-complex`.
    """
    launch: Annotated[str, choice(ELASTIC, SIMPLE)] = ELASTIC
    """`elastic`: workers that train together, with rendezvous and recovery; `simple`: independent processes, each restarted
    alone.
    """
    total: Annotated[int | None, whole(0, 999_999, unit="instances")] = None
    """Number of instances of a simple role, or of workers of an elastic role; 0: the role starts no process."""
    per_group: Annotated[int | None, whole(1, 999_999, unit="instances")] = None
    """Number of instances of a simple role that run together on one node. For an elastic role, another name of
    `nproc_per_node`.
    """
    driver: Annotated[bool | None, FLAG] = None
    """The job succeeds when all roles with `driver: true` have succeeded; Rallypoint then ends the other roles."""
    on_failure: Annotated[str, choice("instance", "role", "job", "none")] = ""
    """Reaction to a failed instance: `instance` (default): restart this instance (elastic role: recover as in a job with one
    role); `role`: restart all instances of the role; `job`: restart all roles; `none`: restart nothing and fail the job.
    """
    node_group_failover: NodeGroupFailover = NodeGroupFailover()
    """Nodes that are replaced together."""
    process_group: Annotated[bool | None, FLAG] = None
    """True (default): if the entrypoint of an elastic role is a function, Rallypoint creates torch's process group before it
    calls the function.
    """
    env: _Environment = Field(default_factory=dict)
    """Environment variables of the workers. Numbers and true/false become strings; null is an error."""
    workdir: Annotated[str, PATH] = ""
    """Working directory of the workers, relative to the folder of the job file, which is also the default."""
    checkpoint_dir: Annotated[str, PATH] = ""
    """Folder of the checkpoints; workers get its path as RALLYPOINT_CHECKPOINT_DIR."""
    setup_commands: Annotated[tuple[Annotated[str, COMMAND_LINE], ...], LIST] = ()
    """Shell commands that run once per node, in one shell that stops at the first error. Workers get the working directory of
    this shell and the environment variables that it exports.
    """
    resources: Resources = Resources()
    """Resources that one node requests; without effect on the backend `local`."""
    instance_resources: InstanceResources = InstanceResources()
    """Resources that one instance requests. Each node of an elastic role requests the sum for its workers, unless the workers
    share devices.
    """
    image: Annotated[str, WORD] = ""
    """Container image. The fields of this table from `image` to `annotations` apply only to pods."""
    image_pull_policy: Annotated[str, choice("Always", "IfNotPresent", "Never")] = ""
    """When the image is pulled. Default as in Kubernetes: `Always` with the tag `:latest`, otherwise `IfNotPresent`."""
    python: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Command that starts Python in the image, as a list. Default: `[python]`."""
    pod_env: _Containers = ()
    """Environment variables in the form of a container's `env`, for values from Secrets (`valueFrom`)."""
    env_from: _Containers = ()
    """ConfigMaps and Secrets whose keys become environment variables, in the form of a container's `envFrom`."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels of the Kubernetes nodes on which pods may run."""
    tolerations: _Containers = ()
    """Tolerations of the pods, in the form of `tolerations` in a pod's spec."""
    affinity: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """Affinity of the pods, in the form of `affinity` in a pod's spec."""
    volumes: _Containers = ()
    """Volumes of the pods, in the form of `volumes` in a pod's spec."""
    volume_mounts: _Containers = ()
    """Mounts of the volumes, in the form of `volumeMounts` in a container's spec."""
    init_containers: _Containers = ()
    """Containers that run before the workers start, in the form of `initContainers` in a pod's spec."""
    sidecars: _Containers = ()
    """Containers that run beside the workers and end after them, in the form of `containers` in a pod's spec; needs Kubernetes
    1.29.
    """
    service_account: Annotated[str, WORD] = ""
    """Service account of the pods. Default: none, and the pods get no service account token."""
    coordinator_service_account: Annotated[str, WORD] = ""
    """Service account of the coordinator; `rallypoint manifests rbac` prints its Role. Default: `service_account`."""
    image_pull_secrets: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Names of the Secrets with which the image is pulled."""
    priority_class: Annotated[str, WORD] = ""
    """Priority class of the pods."""
    scheduler_name: Annotated[str, WORD] = ""
    """Name of the scheduler of the pods. Default: the cluster's scheduler."""
    host_ignore_list: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Hosts on which no pod of the job may run, as values of the label `kubernetes.io/hostname`."""
    queue: Annotated[str, WORD] = ""
    """Name of a LocalQueue of Kueue. The first MIN nodes of the job wait for quota together; each further node waits alone."""
    queue_priority: Annotated[str, WORD] = ""
    """Name of the job's WorkloadPriorityClass in Kueue."""
    termination_grace_period: Annotated[float | None, duration(positive=True)] = None
    """Time between SIGTERM and SIGKILL when a pod is deleted. Default: `recovery.stop_grace_period` plus 15s."""
    security_context: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """Security context of the container; overrides Rallypoint's default, which meets the pod security standard `restricted`."""
    pod_security_context: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """Security context of the pod; overrides Rallypoint's default, which meets the pod security standard `restricted`."""
    pod_template: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """Template of the pods (`metadata`, `spec`); the workers run in the template's container `trainer`."""
    labels: Texts = Field(default_factory=dict)
    """Labels of the pods, in addition to those of the job."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations of the pods, in addition to those of the job."""

    @model_validator(mode="after")
    def _ends_are_multiples_of_the_unit(self) -> Self:
        unit, nodes = self.node_unit, self.nodes
        if nodes.min % unit == 0 and nodes.max % unit == 0:
            return self
        multiple = "a multiple" if nodes.min == nodes.max else "MIN and MAX that are multiples"
        raise refusal(f"{multiple} of {unit}, because node_unit is {unit}", at="nodes", value=write_nodes(nodes))

    def with_base(self, base: Path) -> Role:
        """Return the role with its paths made absolute: `workdir` against `base`, `checkpoint_dir` against `workdir`.

        `~` is the home of the user who submits. A script stays relative to `workdir`, addresses (`s3://...`) as they are.
        """
        workdir = resolve(self.workdir, base)
        return self.model_copy(
            update={
                "workdir": workdir,
                "checkpoint_dir": resolve(self.checkpoint_dir, Path(workdir)) if self.checkpoint_dir else "",
                "entrypoint": _script_at_home(self.entrypoint),
            }
        )


if TYPE_CHECKING:
    Role = _Role
else:
    Role = extended(_Role, "roles")


def resolve(path: str, base: Path) -> str:
    """Return `path` as an absolute path, relative ones against `base`; "" is `base` itself. Addresses stay as they are."""
    return path if "://" in path else str(Path(base, _at_home(path)).absolute())


def _at_home(path: str) -> str:
    """Return `path` with its `~` expanded; that of an unknown user stays as it is."""
    return os.path.expanduser(path)  # noqa: PTH111  pathlib raises for an unknown user


def _script_at_home(entrypoint: Entrypoint) -> Entrypoint:
    if entrypoint.entry is not Entry.SCRIPT:
        return entrypoint
    return dataclasses.replace(entrypoint, words=(_at_home(entrypoint.words[0]),))
