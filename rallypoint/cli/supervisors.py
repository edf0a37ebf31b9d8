"""The supervisor that a command leaves behind, as long as that command is there to see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.cli.options import spell_command
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["SupervisorLostError", "ended", "taken_on"]

#: How long a supervisor may take to begin, in seconds; it is not waited for any longer, but it is not given up either.
_PATIENCE = 30.0


class SupervisorLostError(RallypointError):
    """The supervisor that was left behind ended before its job."""

    def __init__(self, name: str, pid: int, home: Path | None) -> None:
        super().__init__(
            f"the supervisor of job {name} (process {pid}) ended before the job did; its last words are in supervisor.log "
            f"in the job's folder; to take the job on again: {spell_command(home, 'supervise', name)}"
        )


async def taken_on(backend: Backend, record: JobRecord, pid: int, home: Path | None) -> JobRecord:
    """Return a job's record once its new supervisor has begun; raises `SupervisorLostError` when that one ends first."""
    beginning, end = asyncio.create_task(_begun(backend, record)), asyncio.create_task(ended(pid))
    try:
        await asyncio.wait({beginning, end}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not beginning.done():
            # It may have done its work in between: a job that is over at once is no error.
            record = await _reload(backend, record)
            if record.phase is Phase.EMPTY:
                raise SupervisorLostError(record.name, pid, home)
        return beginning.result() if beginning.done() else record
    finally:
        beginning.cancel()
        end.cancel()


async def _begun(backend: Backend, record: JobRecord) -> JobRecord:
    async with backend.changes(record.name) as changes:
        while (record := await _reload(backend, record)).phase is Phase.EMPTY:
            await changes.wait(1.0)
    return record


async def _reload(backend: Backend, record: JobRecord) -> JobRecord:
    """Return the record as it is now; what was deleted meanwhile is as it was."""
    stored = await backend.load(record.name)
    return record if stored is None else stored.record


async def ended(pid: int) -> None:
    """Return when a process of this machine has ended, or when there is none of this number."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
