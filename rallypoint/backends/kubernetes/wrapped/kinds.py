"""The kinds of objects that stand for a whole job, and where the API has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.wire.plan import Kind, Plan

__all__ = ["KINDS", "RAYS", "WRAPPING", "Wrapping", "has_secret"]


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """One kind: its name, version and plural, and what has to be installed for it."""

    kind: str
    version: str
    plural: str
    installed_by: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of all objects of a namespace, or of one."""
        root = f"/apis/{self.version}/namespaces/{namespace}/{self.plural}"
        return f"{root}/{name}" if name else root


WRAPPING: Mapping[Kind, Wrapping] = {
    Kind.APPWRAPPER: Wrapping(
        kind="AppWrapper",
        version="workload.codeflare.dev/v1beta2",
        plural="appwrappers",
        installed_by="the AppWrapper controller",
    ),
    Kind.PYTORCHJOB: Wrapping(
        kind="PyTorchJob", version="kubeflow.org/v1", plural="pytorchjobs", installed_by="the training operator"
    ),
    Kind.RAYJOB: Wrapping(kind="RayJob", version="ray.io/v1", plural="rayjobs", installed_by="the KubeRay operator"),
    Kind.RAYCLUSTER: Wrapping(
        kind="RayCluster", version="ray.io/v1", plural="rayclusters", installed_by="the KubeRay operator"
    ),
}

#: By what stands in a manifest.
KINDS: Mapping[tuple[str, str], Kind] = {(wrapping.version, wrapping.kind): kind for kind, wrapping in WRAPPING.items()}

#: Kinds in which KubeRay makes a Ray cluster, and a driver of ours supervises one attempt of the job inside of it.
RAYS = (Kind.RAYJOB, Kind.RAYCLUSTER)


def has_secret(plan: Plan) -> bool:
    """Return whether the pods of a job have a secret from us: those of a Ray cluster get theirs from the ledger."""
    return not plan.insecure_token and plan.kind not in RAYS
