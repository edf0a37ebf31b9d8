"""Read fields of the job's record that the supervisor writes for optional capabilities."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from rallypoint.wire import sanitize

__all__ = ["RecordFile"]

log = logging.getLogger("rallypoint.requests")


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
