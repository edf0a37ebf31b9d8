"""Read the last worker command from the supervisor, and forward it to the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from rallypoint.capabilities.base import ServiceContext
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.wish import Wish

__all__ = ["running"]

log = logging.getLogger("rallypoint.commands")

#: Seconds between two reads.
_PERIOD = 0.5


@contextlib.asynccontextmanager
async def running(context: ServiceContext) -> AsyncIterator[None]:
    """Read commands meanwhile; does nothing if no supervisor sends any."""
    if context.requested is None:
        yield
        return
    reading = asyncio.create_task(_read(context))
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if not reading.cancelled():
        reading.result()


async def _read(context: ServiceContext) -> None:
    assert context.requested is not None
    while True:
        found = await context.requested("wish")
        try:
            command = None if found is None else codec.from_json(Wish, found, lenient=True)
        except WireError as error:
            log.debug(
                "the coordinator cannot read the last worker command (pause, resume, save or stop) in the job's record: %s",
                error,
            )
        else:
            context.send("commands", command)
        await asyncio.sleep(_PERIOD)
