"""What runs inside a pod: the node agent and, once per job, the coordinator. No torch, no pydantic.

`launch_agent` and its words are loaded on first use: most who import this package are programs of a pod, and start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.agent.launch.calling import launch_agent
    from rallypoint.agent.launch.config import LaunchConfig
    from rallypoint.agent.launch.events import Events
    from rallypoint.agent.launch.std import Std

__all__ = ["Events", "LaunchConfig", "Std", "launch_agent"]

_ROOMS = {"Events": "events", "LaunchConfig": "config", "Std": "std", "launch_agent": "calling"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.launch.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
