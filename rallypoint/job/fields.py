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
    """The fields of a job."""

    name: Annotated[str, NAME]
    """Name of the job; the names of its Kubernetes objects are derived from this name."""
    roles: Annotated[tuple[Role, ...], _ROLES, AfterValidator(_different)]
    """Roles of the job. The fields of a single role can be written at the top level; the role is then called `trainer`."""
    platform: Annotated[str, PLATFORM] = ""
    """Backend of the job (an argument of DLRover); `pyk8s` and `k8s` mean `kubernetes`. Default: the backend that the command
    or the Airflow task selects.
    """
    namespace: Annotated[str, NAMESPACE] = ""
    """Kubernetes namespace of the job (an argument of DLRover). Default: the namespace that the command or the Airflow task
    selects.
    """
    profile: Annotated[Profile, PROFILE] = Profile.LADDER
    """Set of supervision rules and defaults. Default: `ladder`, unless labels or fields of the job select another profile."""
    labels: Texts = Field(default_factory=dict)
    """Labels of the job and all its pods. Some labels, such as `fault-scheduling`, also set fields of the job."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations of the job and all its pods. Some annotations, such as those of AppWrapper, also set fields of the job."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """How the supervisor reacts to failures of the whole job."""
    recovery: Recovery = Recovery()
    """How single workers and nodes are restarted and replaced."""
    rendezvous: Rendezvous = Rendezvous()
    """How nodes form a round."""
    health: Health = Health()
    """How lost nodes, hangs and faulty nodes are detected."""
    insecure_token: Annotated[bool, FLAG] = False
    """True: the agents of a PyTorchJob or AppWrapper have no secret; for use in namespaces in which you cannot create a Secret.
    Any process that can connect to a pod and knows the job's name can then join the job. Jobs whose pods Rallypoint creates
    itself (kind `pods`) and local jobs always have a secret.
    """
    tls: Annotated[str, TLS] = ""
    """Mutual TLS between agents and coordinator (docs/guides/tls.md). `auto`: Rallypoint creates the certificates; `{secret:
    NAME}`: the Secret NAME contains them (keys `ca.crt`, `tls.crt`, `tls.key`).
    """
    network_policy: Annotated[str, NETWORK_POLICY] = ""
    """With `on` or a list of networks, a Kubernetes NetworkPolicy allows only pods of the job to connect to its pods. The
    supervisor must connect to the coordinator's port: with `on`, this port is open to all clients; with a list of networks,
    such as `10.0.0.0/28`, only to clients in these networks.
    """
    logs: Logs = Logs()
    """How the output of each rank is stored."""
    config: Annotated[dict[str, Any], CONFIG] = Field(default_factory=dict)
    """Your own settings, which every worker can read (`rallypoint.training.job_config()`). Numbers with a decimal point need no
    quotes.
    """
    cluster: Cluster = Cluster()
    """The machines that the job may use; the roles of the job must fit on these machines."""
    groups: Annotated[tuple[Group, ...], LIST] = ()
    """Groups of roles that are placed together and share devices."""
    master: Master = Master()
    """Settings of the coordinator and the supervisor of the job."""
    worker_isolation: Annotated[str, WORD] = ""
    """Name of a Kubernetes extended resource; each worker requests one unit of this resource."""
    rpc: Rpc = Rpc()
    """Settings of function calls between roles."""


if TYPE_CHECKING:
    JobFields = _JobFields
else:
    JobFields = with_blocks(_JobFields)
