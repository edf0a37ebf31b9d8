"""Who may do what: the two Roles, with exactly the verbs that are used, and the manifests that grant them. Pure.

What only some jobs need comes on top where it is asked for: wrappers, queues, and machines, which are no namespace's.

A test compares this with what a recorded run asked the API server for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.manifests.checks.place import DNS_LABEL, DNS_NAME, is_dns_label, is_dns_name
from rallypoint.backends.kubernetes.names import COORDINATOR_ROLE, SUPERVISOR_ROLE

__all__ = [
    "CLAIMS",
    "COORDINATOR",
    "MACHINES",
    "NETWORK",
    "NODES",
    "QUEUES",
    "SUPERVISOR",
    "TLS",
    "WRAPPERS",
    "Grant",
    "allows",
    "rbac",
]

_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Verbs on one kind of resource; a subresource is written `pods/log`. `why` is for people."""

    group: str = ""
    resource: str
    verbs: tuple[str, ...]
    why: str


#: The coordinator in its pod. Names of objects cannot be given: they are those of jobs to come.
COORDINATOR = (
    Grant(resource="configmaps", verbs=("get", "patch"), why="write the job's status, read its record and supervisor"),
    Grant(group="coordination.k8s.io", resource="leases", verbs=("get",), why="check whether the supervisor is alive"),
)

#: Whoever supervises: an Airflow worker or triggerer, a person, or the supervisor's own pod.
SUPERVISOR = (
    Grant(
        resource="configmaps",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="store the job, its record and its status",
    ),
    Grant(resource="pods", verbs=("create", "delete", "get", "list", "watch"), why="create coordinators and nodes"),
    Grant(resource="pods/log", verbs=("get",), why="read logs, and save the last lines of a pod before its deletion"),
    Grant(resource="pods/proxy", verbs=("create", "get"), why="send the list of agents to the coordinator and read its state"),
    Grant(resource="secrets", verbs=("create", "delete", "get"), why="store the secret of each attempt"),
    Grant(resource="services", verbs=("create", "get"), why="create the job's headless Service"),
    Grant(resource="events", verbs=("list",), why="read why a pod does not start"),
    Grant(
        group="coordination.k8s.io",
        resource="leases",
        verbs=("create", "delete", "get", "patch"),
        why="write its heartbeat and read the heartbeats of other supervisors",
    ),
)


#: The supervisor's side of jobs in AppWrappers and PyTorchJobs comes on top. Who makes an AppWrapper must be allowed to make
#: what is in it.
WRAPPERS = (
    Grant(
        group="workload.codeflare.dev",
        resource="appwrappers",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="manage jobs of kind appwrapper",
    ),
    Grant(
        group="kubeflow.org",
        resource="pytorchjobs",
        verbs=("create", "delete", "get", "list", "watch"),
        why="manage jobs of kind pytorchjob, also inside an AppWrapper",
    ),
    Grant(
        group="kueue.x-k8s.io",
        resource="workloads",
        verbs=("list", "patch"),
        why="suspend and resume a wrapper in a Kueue queue",
    ),
    Grant(resource="pods", verbs=("patch",), why="end the servers of a job in an AppWrapper"),
)

#: The supervisor's side of jobs of the kinds `rayjob` and `raycluster` comes on top.
KUBERAY = (
    Grant(
        group="ray.io",
        resource="rayjobs",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="manage jobs of kind rayjob",
    ),
    Grant(
        group="ray.io",
        resource="rayclusters",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="manage jobs of kind raycluster",
    ),
)

#: The supervisor's side of plain pods in queues of Kueue comes on top.
QUEUES = (Grant(resource="pods", verbs=("patch",), why="inform Kueue about the end of a pod group, which frees its quota"),)

#: The supervisor's side of jobs with `tls: auto` comes on top.
TLS = (Grant(resource="secrets", verbs=("patch",), why="renews the certificates of jobs with tls: auto"),)

#: The supervisor's side of jobs with `network_policy` comes on top.
NETWORK = (
    Grant(
        group="networking.k8s.io",
        resource="networkpolicies",
        verbs=("create", "delete", "get", "patch"),
        why="lets only a job's own pods connect to it",
    ),
)

#: The supervisor's side of jobs in which instances of several roles share the devices of a pod comes on top.
CLAIMS = (
    Grant(
        group="resource.k8s.io",
        resource="resourceclaimtemplates",
        verbs=("create", "get"),
        why="lets the containers of a pod share its devices",
    ),
    Grant(
        group="resource.k8s.io",
        resource="resourceclaims",
        verbs=("create", "get"),
        why="lets an elastic role share devices with the other roles of its group",
    ),
)

#: Machines belong to no namespace: this is granted for the whole cluster.
NODES = (Grant(resource="nodes", verbs=("get", "list", "watch"), why="detect a lost node before its pods are evicted"),)

#: In the namespace in which the kubelet of each machine renews a Lease.
MACHINES = (
    Grant(
        group="coordination.k8s.io",
        resource="leases",
        verbs=("get",),
        why="detect the lost node of a coordinator within seconds",
    ),
)

#: The namespace of those Leases.
_MACHINES_NAMESPACE = "kube-node-lease"


def allows(grants: Iterable[Grant], *, group: str, resource: str, verb: str) -> bool:
    """Return whether one of the grants covers a request."""
    return any(grant.group == group and grant.resource == resource and verb in grant.verbs for grant in grants)


def rbac(
    namespace: str,
    *,
    coordinator: str = COORDINATOR_ROLE,
    supervisor: str = SUPERVISOR_ROLE,
    wrappers: bool = False,
    queues: bool = False,
    nodes: bool = False,
    tls: bool = False,
    network: bool = False,
    claims: bool = False,
    kuberay: bool = False,
) -> tuple[dict[str, Any], ...]:
    """Return ServiceAccount, Role and RoleBinding for each side; `coordinator` and `supervisor` name the service accounts.

    With `wrappers` the supervisor's side may have jobs in AppWrappers and PyTorchJobs, too, with `kuberay` in RayJobs and
    RayClusters, and with `queues` plain pods in queues of Kueue; with `tls` it may renew certificates of jobs, with `network`
    create NetworkPolicies, with `claims` ResourceClaimTemplates. With `nodes` a ClusterRole lets it look at machines, and a
    Role at the Leases of their kubelets.

    Raises `BackendError` for a name that is none.
    """
    if not is_dns_label(namespace):
        raise BackendError(f"namespace: {namespace!r} is not allowed; expected {DNS_LABEL}")
    for account in (coordinator, supervisor):
        if not is_dns_name(account):
            raise BackendError(f"service account: {account!r} is not allowed; expected {DNS_NAME}")
    asked = ((wrappers, WRAPPERS), (queues, QUEUES), (tls, TLS), (network, NETWORK), (claims, CLAIMS), (kuberay, KUBERAY))
    more = tuple(grant for given, grants in asked if given for grant in grants)
    return (
        *_side(namespace, COORDINATOR_ROLE, coordinator, COORDINATOR),
        *_side(namespace, SUPERVISOR_ROLE, supervisor, (*SUPERVISOR, *more)),
        *(_of_cluster(namespace, f"{SUPERVISOR_ROLE}-nodes", supervisor, NODES) if nodes else ()),
        *(_of_machines(namespace, f"{SUPERVISOR_ROLE}-machines", supervisor) if nodes else ()),
    )


def _side(namespace: str, role: str, account: str, grants: Iterable[Grant]) -> tuple[dict[str, Any], ...]:
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Role",
            "metadata": {"name": role, "namespace": namespace},
            "rules": _rules(grants),
        },
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": namespace},
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    )


def _of_cluster(namespace: str, role: str, account: str, grants: Iterable[Grant]) -> tuple[dict[str, Any], ...]:
    """Return a ClusterRole, the same for every namespace, and the binding of one namespace's account."""
    return (
        {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": _rules(grants)},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{role}-{namespace}"},
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    )


def _of_machines(namespace: str, role: str, account: str) -> tuple[dict[str, Any], ...]:
    """Return a Role in the namespace of the machines' Leases, and the binding of one namespace's account."""
    place = {"namespace": _MACHINES_NAMESPACE}
    return (
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": {"name": role, **place}, "rules": _rules(MACHINES)},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{role}-{namespace}", **place},
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    )


def _rules(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    return [{"apiGroups": [grant.group], "resources": [grant.resource], "verbs": list(grant.verbs)} for grant in grants]
