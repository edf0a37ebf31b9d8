"""What a supervisor does beside a job with certificates of its own: it replaces them long before they expire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from rallypoint.backends.contract import BackendError

__all__ = ["EVERY", "renewing"]

log = logging.getLogger(__name__)

#: Seconds between two looks at a job's certificate.
EVERY = 600.0


@contextlib.asynccontextmanager
async def renewing(name: str, renew: Callable[[], Awaitable[object]], *, every: float = EVERY) -> AsyncIterator[None]:
    """Call `renew`, which looks whether there is anything to renew, now and each `every` seconds while the context lasts."""
    task = asyncio.create_task(_renew_on(name, renew, every), name=f"renew certificates of {name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _renew_on(name: str, renew: Callable[[], Awaitable[object]], every: float) -> None:
    while True:
        try:
            await renew()
        except BackendError as error:
            log.warning("job %s: cannot renew the TLS certificate: %s; retrying later", name, error)
        await asyncio.sleep(every)
