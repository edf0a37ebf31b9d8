"""The coordinator's look at the nodes that its supervisor has found lost with their machines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from rallypoint.wire.roster import LostNode

__all__ = ["LossSource", "keep_losses"]

#: Seconds between two looks.
_LOOK = 0.5


class LossSource(Protocol):
    """Where they stand."""

    def lost(self) -> tuple[LostNode, ...]:
        """Return what is known."""
        ...


class Bereft(Protocol):
    """Who must know."""

    def give_up(self, lost: Iterable[LostNode]) -> None:
        """Wait no longer for these nodes."""
        ...


async def keep_losses(job: Bereft, source: LossSource) -> None:
    """Look for ever, and tell the job."""
    while True:
        job.give_up(source.lost())
        await asyncio.sleep(_LOOK)
