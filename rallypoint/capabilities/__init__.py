"""Optional capabilities: one folder each, behind the contract in `base.py`.

A capability's folder has, as far as it needs them:

- `spec.py`: its fields of the job document and what they mean in the plan (loaded by `job/`, the only part with pydantic),
- `arguments.py`: its command-line arguments,
- `wire.py`: its sections of plan, report, status and replies,
- `coordinator.py`: its part of the rendezvous; pure,
- `service.py`: what it runs in the coordinator's process,
- `node.py`: its part of the node agent,
- `worker.py`: what a training script imports,
- `report.py`: what status tables and metrics show of it.

Nothing outside a folder imports it: modules are loaded by the names below. The rendezvous, the node agent and the supervisor
work without any of them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

__all__ = ["COMPAT", "NAMES", "modules"]

#: The registered capabilities. To remove one, delete its folder and its line here.
NAMES: tuple[str, ...] = (
    "commands",
    "hang",
    "metrics",
    "node_check",
    "snapshots",
    "stragglers",
    "tuned_batch",
    "user_hooks",
)

#: Packages of `rallypoint.compat` that are called like capabilities.
COMPAT: tuple[str, ...] = ("rallypoint.compat.kubeflow",)


@functools.cache
def modules(part: str) -> tuple[ModuleType, ...]:
    """Return the modules called `part` of the capabilities that have one, in order of registration."""
    packages = (*(f"{__name__}.{name}" for name in NAMES), *COMPAT)
    names = (f"{package}.{part}" for package in packages)
    return tuple(importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None)
