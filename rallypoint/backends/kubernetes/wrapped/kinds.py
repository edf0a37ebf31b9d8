"""The kinds of objects that stand for a whole job, and where the API has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.wire.plan import Kind

__all__ = ["KINDS", "WRAPPING", "Wrapping"]


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
}

#: By what stands in a manifest.
KINDS: Mapping[tuple[str, str], Kind] = {(wrapping.version, wrapping.kind): kind for kind, wrapping in WRAPPING.items()}
