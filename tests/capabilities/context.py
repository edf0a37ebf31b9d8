"""Contexts of node capabilities for tests: no workers, and no process unless a test brings a spawner."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rallypoint.capabilities.base import NodeContext
from rallypoint.wire.hang import Evidence
from rallypoint.wire.plan import Entry, Plan

__all__ = ["PLAN", "node_context"]

PLAN = Plan(name="j", role="trainer", min_nodes=1, max_nodes=1, nproc_per_node=1, entry=Entry.SCRIPT, entrypoint="t.py")


class _NoSpawner:
    async def spawn(self, command: Any, ended: Any) -> int:
        raise AssertionError(f"the test starts no process: {command}")


async def _no_evidence(number: int) -> Evidence:
    return Evidence(round=0, number=number)


def node_context(**fields: Any) -> NodeContext:
    """Return a context in which only these fields do something."""
    context = NodeContext(
        plan=PLAN,
        attempt=1,
        host="127.0.0.1",
        secret="",
        tls=None,
        folder=Path("unused"),
        pids=dict,
        changed=lambda: None,
        send=lambda _rank, _message: True,
        stop_workers=lambda: None,
        spawner=_NoSpawner(),
        evidence=_no_evidence,
        learned=tuple,
    )
    return dataclasses.replace(context, **fields)
