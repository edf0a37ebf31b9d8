"""The fields of a job, without the reading and writing of its document (`rallypoint.job.model`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from rallypoint.job.cluster import Cluster, Group, Master, Rpc
from rallypoint.job.part import Model
from rallypoint.job.platform import PLATFORM
from rallypoint.job.policies import FaultTolerance, Health, Logs, Recovery, Rendezvous
from rallypoint.job.profiles import PROFILE, with_blocks
from rallypoint.job.role import Role, Texts
from rallypoint.job.rules import (
    CONFIG,
    FLAG,
    LIST,
    NAME,
    NAMESPACE,
    NETWORK_POLICY,
    TLS,
    WORD,
    Collection,
    refusal,
)
from rallypoint.wire.plan import Profile

__all__ = ["JobFields"]

_ROLES = Collection(
    kind="roles",
    allowed="a list of roles or a mapping from a role's name to the role, at least one",
    types=(list, tuple),
    least=1,
)


def _different(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    names = [role.name for role in roles]
    if len(set(names)) == len(names):
        return roles
    raise refusal("a list of roles with different names", value=names)


class _JobFields(Model):
    """What a job says, field by field."""

    name: Annotated[str, NAME]
    """Names the job everywhere; names derived from it fit into the 63 characters of Kubernetes."""
    roles: Annotated[tuple[Role, ...], _ROLES, AfterValidator(_different)]
    """What runs. One role may be written short: its fields at the top level, and its name is `trainer`."""
    platform: Annotated[str, PLATFORM] = ""
    """What runs the job (DLRover's argument): `pyk8s` and `k8s` are `kubernetes`. Without it where it is submitted to."""
    namespace: Annotated[str, NAMESPACE] = ""
    """Where in a cluster (DLRover's argument). Without it where it is submitted to."""
    profile: Annotated[Profile, PROFILE] = Profile.LADDER
    """Rules and defaults of the job. Without it, labels, annotations or the block of a profile choose that profile."""
    labels: Texts = Field(default_factory=dict)
    """Labels of the job and of all its pods. Some set fields of a profile."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations of the job and of all its pods. Those of AppWrapper, and some of a profile, set fields."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """What a supervisor does about the job as a whole."""
    recovery: Recovery = Recovery()
    """What is done about single workers and nodes."""
    rendezvous: Rendezvous = Rendezvous()
    """How nodes find each other."""
    health: Health = Health()
    """How the coordinator and the agents know of each other's life."""
    insecure_token: Annotated[bool, FLAG] = False
    """The agents of a PyTorchJob or an AppWrapper have no secret, for namespaces in which no Secret may be created: a process
    that reaches a pod and knows the job's name can join the job. Plain pods and local jobs always have a secret."""
    tls: Annotated[str, TLS] = ""
    """Mutual TLS between the parts of the job (docs/guides/tls.md): `auto` creates an authority and certificates for the job,
    `{secret: NAME}` uses those in a Secret (`ca.crt`, `tls.crt`, `tls.key`)."""
    network_policy: Annotated[str, NETWORK_POLICY] = ""
    """Kubernetes: a NetworkPolicy lets only the job's own pods connect to its pods. The supervisor reaches the coordinator
    through the API server: `on` leaves the coordinator's port open for that, networks such as `10.0.0.0/28` open it to these
    alone."""
    logs: Logs = Logs()
    """Where the output of each rank goes."""
    config: Annotated[dict[str, Any], CONFIG] = Field(default_factory=dict)
    """Settings of your own, which every worker can read (`rallypoint.training.job_config()`). Numbers here may have a point."""
    cluster: Cluster = Cluster()
    """The machines that all roles must fit onto."""
    groups: Annotated[tuple[Group, ...], LIST] = ()
    """Roles that are placed together and share devices."""
    master: Master = Master()
    """The coordinator and supervisor."""
    worker_isolation: Annotated[str, WORD] = ""
    """A resource of the machines for workers: each worker requests one of it."""
    rpc: Rpc = Rpc()
    """Calls between roles."""


if TYPE_CHECKING:
    JobFields = _JobFields
else:
    JobFields = with_blocks(_JobFields)
