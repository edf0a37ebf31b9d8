"""Numbers of nodes: as users write them, `N` or `MIN:MAX` (the only parser of that form), and as a job is resized to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["MAX_NODES", "MAX_WORKERS", "NODE_RANGE_ALLOWED", "NodeRange", "Size", "parse_node_range"]

#: Nodes of the largest job: the record with a slot for each has to be readable (wire/bounds.py).
MAX_NODES = 16_384

#: Workers of one node.
MAX_WORKERS = 65_535

#: Completes "'x' is not allowed; expected ...".
NODE_RANGE_ALLOWED = f"N or MIN:MAX with 1 <= MIN <= MAX <= {MAX_NODES}"

_FORM = re.compile(r"(\d{1,6})(?::(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """From `min` to `max` nodes, both included; 1 <= min <= max."""

    min: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


def parse_node_range(value: int | str) -> NodeRange:
    """Return the range that `N` (an int or text) or `MIN:MAX` stands for; raises `ValueError` for anything else."""
    match = None if isinstance(value, bool) else _FORM.fullmatch(str(value))
    if match is None:
        raise ValueError(f"nodes: {value!r} is not allowed; expected {NODE_RANGE_ALLOWED}")
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most <= MAX_NODES:
        raise ValueError(f"nodes: {value!r} is not allowed; expected {NODE_RANGE_ALLOWED}")
    return NodeRange(min=least, max=most)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bounds of the world; they take the place of `min_nodes` and `max_nodes` of the plan."""

    limits: ClassVar = {"min_nodes": (0, MAX_NODES), "max_nodes": (0, MAX_NODES)}

    min_nodes: int
    max_nodes: int

    def __str__(self) -> str:
        return f"{self.min_nodes}" if self.min_nodes == self.max_nodes else f"{self.min_nodes}:{self.max_nodes}"
