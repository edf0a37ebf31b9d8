"""What a coordinator reads again and again of its job's record: the requested size, lost nodes, fields of capabilities."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from rallypoint.wire import codec, sanitize
from rallypoint.wire.codec import WireError
from rallypoint.wire.node_range import Size
from rallypoint.wire.roster import LostNode

__all__ = ["FileSize", "LossSource", "RecordFile", "SizeSource", "keep_losses", "keep_size"]

log = logging.getLogger("rallypoint.record")

#: Seconds between two reads of the size.
_SIZE_PERIOD = 1.0

#: Seconds between two reads of the lost nodes.
_LOSS_PERIOD = 0.5


class SizeSource(Protocol):
    """Where the requested bounds of the world are read."""

    async def size(self) -> Size | None:
        """Return the requested bounds, None for those of the plan."""
        ...


class LossSource(Protocol):
    """Where the nodes are read that the supervisor has found lost with their machines."""

    def lost(self) -> tuple[LostNode, ...]:
        """Return the nodes that are known to be lost."""
        ...


class _Resized(Protocol):
    def resize(self, size: Size | None) -> None: ...


class _Bereft(Protocol):
    def give_up(self, lost: Iterable[LostNode]) -> None: ...


class RecordFile:
    """A record on disk, read again when it has changed. If it cannot be read, the fields that were read last stay."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._last: dict[str, Any] = {}
        self._seen: tuple[int, int] | None = None

    async def requested(self, field: str) -> Any:
        """Return the value of a field as JSON, None if it is not set."""
        return await asyncio.to_thread(self._read, field)

    def _read(self, field: str) -> Any:
        try:
            found = self._record.stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen != self._seen:
                record = sanitize.parse(self._record.read_bytes())
                self._last = record if isinstance(record, dict) else {}
                self._seen = seen
        except (OSError, ValueError) as error:
            log.debug("the coordinator cannot read the field %s of the job's record (%s); it uses the last value", field, error)
        return self._last.get(field)


class FileSize:
    """The requested size in a record on disk. A size that cannot be read leaves the last one."""

    def __init__(self, record: RecordFile) -> None:
        self._record = record
        self._last: Size | None = None

    async def size(self) -> Size | None:
        """Return the requested bounds, None for those of the plan."""
        found = await self._record.requested("size")
        try:
            self._last = None if found is None else codec.from_json(Size, found, lenient=True)
        except WireError as error:
            log.debug("the coordinator cannot read the size in the job's record (%s); it uses the last size", error)
        return self._last


async def keep_size(job: _Resized, source: SizeSource) -> None:
    """Pass the requested size to the job until cancelled."""
    while True:
        job.resize(await source.size())
        await asyncio.sleep(_SIZE_PERIOD)


async def keep_losses(job: _Bereft, source: LossSource) -> None:
    """Pass the lost nodes to the job until cancelled, so that it does not wait for them."""
    while True:
        job.give_up(source.lost())
        await asyncio.sleep(_LOSS_PERIOD)
