"""The coordinator's look at what somebody wants of the workers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from rallypoint.wire import codec, sanitize
from rallypoint.wire.codec import WireError
from rallypoint.wire.wish import Wish

__all__ = ["FileWish", "WishSource", "keep_wish"]

log = logging.getLogger("rallypoint.wishes")

#: Seconds between two looks.
_LOOK = 0.5


class WishSource(Protocol):
    """Where it stands."""

    async def wish(self) -> Wish | None:
        """Return the last wish, None where there was none."""
        ...


class Wished(Protocol):
    """Who must know."""

    def wish(self, wish: Wish | None) -> None:
        """Pass it to the agents, unless it is known."""
        ...


class FileWish:
    """A record on disk, read again when it has changed. What cannot be read now leaves what was read last."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._last: Wish | None = None
        self._seen: tuple[int, int] | None = None

    async def wish(self) -> Wish | None:
        """Read it in a thread."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Wish | None:
        try:
            told = self._record.stat()
            seen = (told.st_mtime_ns, told.st_ino)
            if seen != self._seen:
                record = sanitize.parse(self._record.read_bytes())
                found = record.get("wish") if isinstance(record, dict) else None
                self._last = None if found is None else codec.from_json(Wish, found, lenient=True)
                self._seen = seen
        except (OSError, ValueError, WireError) as error:
            log.debug("cannot read the last worker command (pause, resume, save or stop) from the job's record: %s", error)
        return self._last


async def keep_wish(job: Wished, source: WishSource) -> None:
    """Look for ever, and tell the job."""
    while True:
        job.wish(await source.wish())
        await asyncio.sleep(_LOOK)
