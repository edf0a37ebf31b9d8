"""What runs inside a pod: the node agent and, once per job, the coordinator. No torch, no pydantic.

`launch_agent` and its values are loaded on first use: most importers of this package are programs of a pod, and start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.compat.launch_agent.calling import launch_agent
    from rallypoint.compat.launch_agent.config import LaunchConfig, Std
    from rallypoint.compat.launch_agent.events import Events

__all__ = ["Events", "LaunchConfig", "Std", "launch_agent"]

_PLACES = {"Events": "events", "LaunchConfig": "config", "Std": "config", "launch_agent": "calling"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rallypoint.compat.launch_agent.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
