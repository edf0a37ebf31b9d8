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
    """The machines that the job may use; its roles must fit. Without `nodes` and `devices_per_node` nothing is compared."""

    nodes: Annotated[int | None, whole(1, 999_999, unit="nodes")] = None
    """Machines."""
    devices_per_node: Annotated[int | None, whole(1, 999_999, unit="devices")] = None
    """Devices of each machine."""
    device_type: Annotated[str, choice(*DEVICE_TYPES)] = ""
    """What a device is: `gpu` (the default), or with `cpu` one core."""


class Group(Model):
    """Roles whose instances are placed together: group I of each role is on the same node and shares its devices."""

    name: Annotated[str, NAME] = ""
    """Of the group; for people."""
    roles: Annotated[tuple[Annotated[str, WORD], ...], LIST] = ()
    """Names of at least two roles. A role is in at most one group."""


class Master(Model):
    """The coordinator and supervisor of the job."""

    cpu: Annotated[str, QUANTITY] = ""
    """Cores."""
    memory: Annotated[str, QUANTITY] = ""
    """Bytes: `4096Mi`."""
    create_timeout: Annotated[float | None, duration(positive=True)] = None
    """How long the first coordinator may take to start."""
    max_restarts: Annotated[int | None, whole(0, 999_999, unit="replacements")] = None
    """How often the coordinator of one attempt is replaced; 100 without it."""
    isolation: Annotated[str, WORD] = ""
    """A resource of the machines for masters: the master requests one of it."""


class Rpc(Model):
    """Calls between roles (`rallypoint.training.roles`)."""

    pickle: Annotated[bool | None, FLAG] = None
    """Calls may contain any Python object as a pickle, so a process with the job's secret can execute code in the others;
    `false` without it."""
