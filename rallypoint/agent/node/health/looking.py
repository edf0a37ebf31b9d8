"""One look into the workers at a time, when the coordinator asks for one, and what was found as long as it asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rallypoint.agent.waiting import in_background
from rallypoint.wire.hang import Evidence

__all__ = ["Looker"]

log = logging.getLogger("rallypoint.node")


class Looker:
    """Calls `find` with the number of a request; `changed` is called when something was found."""

    def __init__(self, find: Callable[[int], Awaitable[Evidence]], changed: Callable[[], None]) -> None:
        self._find, self._changed = find, changed
        self._found: Evidence | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def told(self) -> tuple[int, int] | None:
        """Round and number of what was found, None while nothing is told."""
        return None if self._found is None else (self._found.round, self._found.number)

    def found_in(self, round_: int) -> Evidence | None:
        """Return what was found in this round, None where that was another."""
        return self._found if self._found is not None and self._found.round == round_ else None

    def asked(self, number: int, round_: int) -> None:
        """Take what the coordinator asks for; 0 is nothing. What it does not ask for any more is told no more."""
        if number == 0:
            self._found = None
        elif (self._looking is None or self._looking.done()) and self.told != (round_, number):
            self._looking = in_background(self._look(number), log, "collecting stacks of the workers")

    async def _look(self, number: int) -> None:
        found = self._found = await self._find(number)
        log.debug("round %d: collected stacks of all workers for hang analysis, file=%s", found.round, found.path or "none")
        self._changed()

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What runs now, for whoever ends it."""
        return () if self._looking is None else (self._looking,)
