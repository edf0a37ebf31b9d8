"""`auto_config`: a node that has devices runs as many workers as it has of them. Counted on the node, where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rallypoint.agent.accelerators import accelerator
from rallypoint.wire.plan import Plan

__all__ = ["configured"]


def configured(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return the plan as this node carries it out; it stays as it is where there is nothing to count. Raises `ConfigError`."""
    if not plan.devices.auto_config:
        return plan
    devices = accelerator(plan.devices.accelerator).count(environ)
    return dataclasses.replace(plan, nproc_per_node=devices) if devices else plan
