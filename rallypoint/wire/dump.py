"""A last checkpoint before the end: what the coordinator asks of the agents for it, and what they answer.

Three questions, each to all whom it concerns, and the next when all have answered: what do you hold, write these parts, and (to
one of them) make it a checkpoint. So the manifest appears when every part is written, and nobody but the coordinator says when.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.fence import Fence

__all__ = ["DUMP_TIMEOUT", "DumpAsk", "DumpPhase", "DumpTold", "Kept"]


#: Seconds that all of it may take: as long as storage needs for a part of the state.
DUMP_TIMEOUT = 600.0


class DumpPhase(str, enum.Enum):
    """Which question."""

    TELL = "tell"  #: what is held here
    WRITE = "write"  #: write the parts of some ranks
    COMMIT = "commit"  #: find that all are written, and rename


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The parts of one snapshot that lie on a node; `whole`: each of them is all of the state."""

    limits: ClassVar = {"step": WHOLE}

    fence: Fence
    step: int
    world_size: int
    ranks: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class DumpAsk:
    """Question `phase` of dump `number`; `fence` and `step` name the snapshot, `ranks` whose parts this agent writes."""

    limits: ClassVar = {"step": WHOLE}

    number: int
    phase: DumpPhase
    fence: Fence = Fence()
    step: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DumpTold:
    """The answer to it: what is held, or the checkpoint that was written; or why not (`error`)."""

    number: int
    phase: DumpPhase
    kept: tuple[Kept, ...] = ()
    checkpoint: str = ""
    error: str = ""
