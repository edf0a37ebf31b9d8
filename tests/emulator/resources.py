"""The kinds of objects that the server knows from the start. Custom resources join them at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BUILTIN", "Resource", "builtin"]

READ_WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind of objects and how the server treats it."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = READ_WRITE
    short: tuple[str, ...] = ()
    unconditional: bool = True
    """Whether a replacement may come without a resourceVersion."""
    generation: bool = False
    """Whether a change of the spec is counted."""
    admit: Callable[[dict[str, Any]], tuple[dict[str, Any], list[tuple[str, str]]]] | None = None
    """Of a custom resource: prunes, fills in defaults and validates a body; returns it and what is wrong."""
    list_keys: Callable[[tuple[str, ...]], tuple[str, ...] | None] | None = None
    """Of a custom resource: the merge keys of the list at a path of fields, or None for a list that is one value."""

    @property
    def key(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def custom(self) -> bool:
        return self.admit is not None

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


RBAC = "rbac.authorization.k8s.io"

BUILTIN: tuple[Resource, ...] = (
    Resource(
        plural="pods",
        kind="Pod",
        subresources=("binding", "eviction", "log", "proxy", "status"),
        short=("po",),
        generation=True,
    ),
    Resource(plural="configmaps", kind="ConfigMap", short=("cm",)),
    Resource(plural="secrets", kind="Secret"),
    Resource(plural="services", kind="Service", subresources=("status",), short=("svc",)),
    Resource(plural="events", kind="Event", short=("ev",)),
    Resource(plural="nodes", kind="Node", namespaced=False, subresources=("status",), short=("no",)),
    Resource(plural="namespaces", kind="Namespace", namespaced=False, subresources=("finalize", "status"), short=("ns",)),
    Resource(plural="serviceaccounts", kind="ServiceAccount", subresources=("token",), short=("sa",)),
    Resource(plural="persistentvolumeclaims", kind="PersistentVolumeClaim", subresources=("status",), short=("pvc",)),
    Resource(plural="resourcequotas", kind="ResourceQuota", subresources=("status",), short=("quota",)),
    Resource(plural="limitranges", kind="LimitRange", short=("limits",)),
    Resource(plural="leases", kind="Lease", group="coordination.k8s.io", unconditional=False),
    Resource(plural="networkpolicies", kind="NetworkPolicy", group="networking.k8s.io", generation=True, short=("netpol",)),
    Resource(plural="roles", kind="Role", group=RBAC),
    Resource(plural="rolebindings", kind="RoleBinding", group=RBAC),
    Resource(plural="clusterroles", kind="ClusterRole", group=RBAC, namespaced=False),
    Resource(plural="clusterrolebindings", kind="ClusterRoleBinding", group=RBAC, namespaced=False),
    Resource(plural="priorityclasses", kind="PriorityClass", group="scheduling.k8s.io", namespaced=False, short=("pc",)),
    Resource(
        plural="customresourcedefinitions",
        kind="CustomResourceDefinition",
        group="apiextensions.k8s.io",
        namespaced=False,
        subresources=("status",),
        short=("crd", "crds"),
        unconditional=False,
        generation=True,
    ),
    Resource(
        plural="selfsubjectaccessreviews",
        kind="SelfSubjectAccessReview",
        group="authorization.k8s.io",
        namespaced=False,
        verbs=("create",),
    ),
    Resource(
        plural="selfsubjectreviews",
        kind="SelfSubjectReview",
        group="authentication.k8s.io",
        namespaced=False,
        verbs=("create",),
    ),
)

_BY_KEY = {resource.key: resource for resource in BUILTIN}


def builtin(key: str) -> Resource:
    """The built-in resource that is named `plural` or `plural.group`."""
    return _BY_KEY[key]
