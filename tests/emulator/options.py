"""How an emulator is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NodeOptions", "Options"]


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """A node that the kubelet plays. Amounts as the API writes them."""

    name: str
    cpu: str = "64"
    memory: str = "256Gi"
    gpus: int = 8
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything that can be chosen. Times are seconds of a real cluster; `speed` says how much faster they pass here."""

    port: int = 0
    """0: any free one."""
    rbac: bool = False
    """Whether Roles are enforced; a request without a token is then refused."""
    crds: tuple[Path, ...] = ()
    """Files and folders with definitions of custom resources; `DEFINITIONS` has those that Rallypoint can be used with.

    They are large: reading them all takes seconds, once in a process.
    """
    nodes: tuple[NodeOptions, ...] = (NodeOptions(name="node-a"), NodeOptions(name="node-b"), NodeOptions(name="node-c"))
    """Empty: no kubelet and no scheduler; pods are objects that the caller patches."""
    namespaces: tuple[str, ...] = ("default",)
    speed: float = 20.0
    """So many times faster do waits of controllers and the kubelet's back-offs pass. Never a pod's own grace period."""
    controllers: tuple[str, ...] = ()
    """Which run beside Kubernetes' own (`controllers.NAMES`); they bring the definitions that they need."""
    routing: bool = True
    """Whether pods reach the API server where Kubernetes tells them it is."""
    history: int = 50_000
    """So many changes of each kind are remembered for watches."""
    bookmark_every: float = 60.0
    """Seconds between the bookmarks of a watch."""
    image_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that every container has, as if its image had set them."""
    image_files: Mapping[str, Path] = field(default_factory=dict)
    """Folders of this machine that every image holds, by their paths in it."""
    folder: Path | None = None
    """Where pods have their files; None: a temporary folder, which goes with the emulator."""
