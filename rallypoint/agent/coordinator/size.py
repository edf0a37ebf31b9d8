"""The coordinator's look at how many nodes its job is wanted to have."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from rallypoint.wire import codec, sanitize
from rallypoint.wire.codec import WireError
from rallypoint.wire.size import Size

__all__ = ["FileSize", "SizeSource", "keep_size"]

log = logging.getLogger("rallypoint.size")

#: Seconds between two looks.
_LOOK = 1.0


class SizeSource(Protocol):
    """Where it stands."""

    async def size(self) -> Size | None:
        """Return the bounds that are wanted, None where they are those of the plan."""
        ...


class Resized(Protocol):
    """Who must know."""

    def resize(self, size: Size | None) -> None:
        """Keep to these bounds from now on; None are those of the plan."""
        ...


class FileSize:
    """A record on disk. What cannot be read now leaves what was read last."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._last: Size | None = None

    async def size(self) -> Size | None:
        """Read it in a thread."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Size | None:
        try:
            record = sanitize.parse(self._record.read_bytes())
            found = record.get("size") if isinstance(record, dict) else None
            self._last = None if found is None else codec.from_json(Size, found, lenient=True)
        except (OSError, ValueError, WireError) as error:
            log.debug(
                "the coordinator cannot read the requested number of nodes in the job's record (%s); it uses the last number",
                error,
            )
        return self._last


async def keep_size(job: Resized, source: SizeSource) -> None:
    """Look for ever, and tell the job."""
    while True:
        job.resize(await source.size())
        await asyncio.sleep(_LOOK)
