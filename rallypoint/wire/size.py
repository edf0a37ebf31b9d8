"""How many nodes a job is wanted to have, where that is no longer what it was submitted with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.node_range import MAX_NODES

__all__ = ["Size"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bounds of the world; they take the place of `min_nodes` and `max_nodes` of the plan."""

    limits: ClassVar = {"min_nodes": (0, MAX_NODES), "max_nodes": (0, MAX_NODES)}

    min_nodes: int
    max_nodes: int

    def __str__(self) -> str:
        return f"{self.min_nodes}" if self.min_nodes == self.max_nodes else f"{self.min_nodes}:{self.max_nodes}"
