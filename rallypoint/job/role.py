"""One role of a job: what runs, on how many nodes, with which resources, and how its pods look."""

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

#: Name of the role that is written short, at the top level of the document.
DEFAULT_ROLE = "trainer"

#: How a role is launched: as one world of workers, or as instances that do not know each other.
ELASTIC, SIMPLE = "elastic", "simple"

Texts = Annotated[dict[Annotated[str, WORD], Annotated[str, SCALAR]], MAPPING]
_Containers = Annotated[tuple[Annotated[dict[str, Any], CONTAINER], ...], LIST]
_Extended = Annotated[dict[Annotated[str, RESOURCE], Annotated[str, QUANTITY]], MAPPING]
_Amounts = Annotated[dict[Annotated[str, WORD], Annotated[int | float, AMOUNT]], MAPPING]
_Environment = Annotated[dict[Annotated[str, VARIABLE], Annotated[str, SCALAR]], MAPPING]


class Resources(Model):
    """What one node asks for, in Kubernetes' quantities. A limit that is not given is what is asked for."""

    cpu: Annotated[str, QUANTITY] = ""
    """Cores: `4`, `500m`."""
    memory: Annotated[str, QUANTITY] = ""
    """Bytes: `8Gi`, `512M`."""
    cpu_limit: Annotated[str, QUANTITY] = ""
    """Cores that a node never gets more of."""
    memory_limit: Annotated[str, QUANTITY] = ""
    """Bytes beyond which a node is killed."""
    shm: Annotated[str, QUANTITY] = ""
    """Size of /dev/shm, which comes on top of `memory`; 64Mi for each worker without it. Holds progress and snapshots."""
    gpus: Annotated[int, whole(0, unit="GPUs")] = 0
    """Number of GPUs; asked for and limited to, alike."""
    gpu_resource: Annotated[str, RESOURCE] = ""
    """What a GPU is called in the cluster; without it `nvidia.com/gpu`, or `huawei.com/Ascend910` of an `ascend-npu`."""
    extended: _Extended = Field(default_factory=dict)
    """Any further resource by its full name: `rdma/hca: 1`."""


class InstanceResources(Model):
    """What one instance of a role needs, for jobs with several roles. An instance of an elastic role is one worker."""

    other_names: ClassVar[Mapping[str, str]] = {"gpu": "gpus"}

    cpu: Annotated[str, QUANTITY] = ""
    """Cores: `4`, `500m`."""
    memory: Annotated[str, QUANTITY] = ""
    """Bytes: `8Gi`, `512M`."""
    disk: Annotated[str, QUANTITY] = ""
    """Bytes of local storage."""
    gpus: Annotated[Fraction | None, SHARE] = None
    """Devices: a whole number, or a fraction of one device that instances share. In a group without it 1/N of N roles."""
    user_defined: _Amounts = Field(default_factory=dict)
    """Amounts of resources with names of your own."""


class NodeGroupFailover(Model):
    """Nodes that fail together: a replacement that stays pending replaces all nodes with the same value of a label."""

    label: Annotated[str, WORD] = ""
    """Label of the machines."""
    timeout: Annotated[float | None, duration(least=30.0)] = None
    """How long the replacement of one node may stay pending; 5m without it."""


class _Role(Model):
    """Nodes that run the same thing. Written short, its fields stand at the top level of the document."""

    name: Annotated[str, NAME] = DEFAULT_ROLE
    """Unique within the job; a key of `roles` where that is a mapping."""
    entrypoint: Annotated[Entrypoint, ENTRYPOINT]
    """What each worker runs: `train.py`, `-m pkg.train`, `pkg.train:run`, `[bash, -c, ...]` or
    `{script|module|function|command: ...}`. A function is called without arguments; of a class, `run()`."""
    args: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Arguments; numbers become strings."""
    nodes: Annotated[NodeRange, NODES] = NodeRange(min=1, max=1)
    """How many nodes take part: exactly `N`, or any number from MIN to MAX."""
    node_unit: Annotated[int, whole(1, MAX_NODES, unit="nodes")] = 1
    """The number of nodes of a world is a multiple of this; MIN and MAX must be, too."""
    nproc_per_node: Annotated[int, whole(1, MAX_WORKERS, unit="workers")] = 1
    """Workers on each node."""
    auto_config: Annotated[bool | None, FLAG] = None
    """Each node has as many workers as it has devices, where it has any (DLRover's argument)."""
    accelerator: Annotated[str, choice("nvidia.com/gpu", "ascend-npu", "cpu")] = ""
    """What a node's devices are (DLRover's argument); `nvidia.com/gpu` without it."""
    numa_affinity: Annotated[str, NUMA] = ""
    """Workers are bound to the CPUs near their GPU: `true` is `node`; or `socket`, `exclusive`, `core-complex`."""
    launch: Annotated[str, choice(ELASTIC, SIMPLE)] = ELASTIC
    """`elastic`: one world of workers with rendezvous and recovery; `simple`: independent instances, each restarted alone."""
    total: Annotated[int | None, whole(0, 999_999, unit="instances")] = None
    """Instances of the role in the whole job; 0 declares a role that runs nothing. Of an elastic role, its workers."""
    per_group: Annotated[int | None, whole(1, 999_999, unit="instances")] = None
    """Instances in one group, which is on one node. Of an elastic role, another name of `nproc_per_node`."""
    driver: Annotated[bool | None, FLAG] = None
    """The job succeeds when all drivers have succeeded; a role with `driver: false` is then ended. `true` without it."""
    on_failure: Annotated[str, choice("instance", "role", "job", "none")] = ""
    """What a failure restarts first: the instance (the default; of an elastic role its recovery ladder), the role or the job;
    `none` fails the job."""
    node_group_failover: NodeGroupFailover = NodeGroupFailover()
    """Nodes that are replaced together."""
    process_group: Annotated[bool | None, FLAG] = None
    """A function of an elastic role is called within the default process group; `false` leaves that to the function."""
    env: _Environment = Field(default_factory=dict)
    """Added to each worker's environment. Numbers and true/false become strings; null is an error."""
    workdir: Annotated[str, PATH] = ""
    """Where workers are started. Relative to the folder of the job file, which is also the default."""
    checkpoint_dir: Annotated[str, PATH] = ""
    """Told to workers as RALLYPOINT_CHECKPOINT_DIR. Relative to `workdir`."""
    setup_commands: Annotated[tuple[Annotated[str, COMMAND_LINE], ...], LIST] = ()
    """Run once per node, in one shell that stops at the first error; workers have the folder and exports that it ends with."""
    resources: Resources = Resources()
    """What one node asks for. This and all below is for backends that run pods."""
    instance_resources: InstanceResources = InstanceResources()
    """What one instance needs. Of an elastic role, whole devices become `resources` of its nodes."""
    image: Annotated[str, WORD] = ""
    """Container image."""
    image_pull_policy: Annotated[str, choice("Always", "IfNotPresent", "Never")] = ""
    """When the image is pulled; without it as Kubernetes does: always for `:latest`, else where it is absent."""
    python: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """How Python is started in the image, as a list; `[python]` without it."""
    pod_env: _Containers = ()
    """Variables of the pod as in a container's spec: for values from secrets (`valueFrom`), which `env` cannot hold."""
    env_from: _Containers = ()
    """As in a container's spec: whole ConfigMaps and Secrets as variables."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels of the machines that pods may run on."""
    tolerations: _Containers = ()
    """As in a pod's spec."""
    affinity: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """As in a pod's spec."""
    volumes: _Containers = ()
    """As in a pod's spec."""
    volume_mounts: _Containers = ()
    """As in a container's spec."""
    init_containers: _Containers = ()
    """Containers, as in a pod's spec, that run to their end before the workers start."""
    sidecars: _Containers = ()
    """Containers, as in a pod's spec, that run beside the workers and end after them (Kubernetes 1.29)."""
    service_account: Annotated[str, WORD] = ""
    """Name of the pods' service account. Its token is mounted only where one is named."""
    coordinator_service_account: Annotated[str, WORD] = ""
    """Name of the coordinator's service account (`rallypoint manifests rbac`); that of the pods without it."""
    image_pull_secrets: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Names of secrets."""
    priority_class: Annotated[str, WORD] = ""
    """Name of the pods' priority class."""
    scheduler_name: Annotated[str, WORD] = ""
    """The scheduler that places the pods; the cluster's own without it."""
    host_ignore_list: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Machines, by their label kubernetes.io/hostname, that no pod of the job may run on."""
    queue: Annotated[str, WORD] = ""
    """Kueue's local queue: the job waits there for its quota, MIN nodes as one and each node above MIN by itself."""
    queue_priority: Annotated[str, WORD] = ""
    """Name of Kueue's workload priority class."""
    termination_grace_period: Annotated[float | None, duration(positive=True)] = None
    """From the end that is asked for to the one by force; without it 15s more than `recovery.stop_grace_period`."""
    security_context: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """As in a container's spec. What it says wins over our own, which a `restricted` namespace accepts."""
    pod_security_context: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """As in a pod's spec, in the same way."""
    pod_template: Annotated[dict[str, Any], CONTAINER] = Field(default_factory=dict)
    """A whole pod template (`metadata`, `spec`) that the pods begin with; its container `trainer` is the one of the workers."""
    labels: Texts = Field(default_factory=dict)
    """Labels of the pods; those of the job are added."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations of the pods; those of the job are added."""

    @model_validator(mode="after")
    def _ends_are_multiples_of_the_unit(self) -> Self:
        unit, nodes = self.node_unit, self.nodes
        if nodes.min % unit == 0 and nodes.max % unit == 0:
            return self
        single = f"the number of nodes ({nodes.min}) must be a multiple"
        both = f"MIN ({nodes.min}) and MAX ({nodes.max}) must be multiples"
        allowed = f"with node_unit {unit}, {single if nodes.min == nodes.max else both} of {unit}"
        raise refusal(allowed, at="nodes", value=write_nodes(nodes))

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
