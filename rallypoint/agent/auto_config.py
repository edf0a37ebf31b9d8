"""`auto_config`: a node that has devices runs as many workers as it has of them. Counted on the node, where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from rallypoint.agent.devices import count_gpus
from rallypoint.wire.plan import Plan

__all__ = ["configured"]

#: What can be counted without any driver's library.
_COUNTED = "nvidia.com/gpu"


def configured(plan: Plan, environ: Mapping[str, str], count: Callable[[Mapping[str, str]], int] = count_gpus) -> Plan:
    """Return the plan as this node carries it out; it stays as it is where there is nothing to count."""
    if not plan.auto_config or plan.accelerator != _COUNTED:
        return plan
    devices = count(environ)
    return dataclasses.replace(plan, nproc_per_node=devices) if devices else plan
