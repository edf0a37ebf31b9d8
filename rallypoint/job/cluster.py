"""Fields of a job with several roles that belong to the job as a whole: its machines, its groups, its master."""

from __future__ import annotations

from typing import Annotated

from rallypoint.job.part import Model
from rallypoint.job.rules import FLAG, LIST, NAME, QUANTITY, WORD, choice, duration, whole

__all__ = ["CPU", "DEVICE_TYPES", "Cluster", "Group", "Master", "Rpc"]

CPU = "cpu"

#: What a device of `cluster` is.
DEVICE_TYPES = ("gpu", CPU)


class Cluster(Model):
    """The machines that the job may use. If `nodes` and `devices_per_node` are set, Rallypoint checks that the roles fit."""

    nodes: Annotated[int | None, whole(1, 999_999, unit="nodes")] = None
    """Number of machines."""
    devices_per_node: Annotated[int | None, whole(1, 999_999, unit="devices")] = None
    """Number of devices of each machine."""
    device_type: Annotated[str, choice(*DEVICE_TYPES)] = ""
    """Kind of the devices: `gpu` (default), or `cpu` (each core is a device)."""


class Group(Model):
    """Roles that are placed together: on one node, `per_group` instances of each of these roles share the devices."""

    name: Annotated[str, NAME] = ""
    """Name of the group, only for display."""
    roles: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Names of at least two roles. A role can be in one group only."""


class Master(Model):
    """The coordinator and the supervisor of the job."""

    cpu: Annotated[str, QUANTITY] = ""
    """CPU cores: `4`, `500m`."""
    memory: Annotated[str, QUANTITY] = ""
    """Memory in bytes: `4096Mi`."""
    create_timeout: Annotated[float | None, duration(positive=True)] = None
    """Time in which the first coordinator must start."""
    max_restarts: Annotated[int | None, whole(0, 999_999, unit="replacements")] = None
    """Maximum number of replacements of the coordinator in one attempt; in a job with several roles, also of the supervisor.
    Default: 100.
    """
    isolation: Annotated[str, WORD] = ""
    """Name of a Kubernetes extended resource; the coordinator requests one unit of this resource."""


class Rpc(Model):
    """Function calls between roles (`rallypoint.training.roles`)."""

    pickle: Annotated[bool | None, FLAG] = None
    """True: calls may contain any Python object as a pickle, so a process with the job's secret can execute code in all roles.
    Default: false.
    """
