"""The heartbeat of this process towards the ledger: one request each second, whatever number of jobs it supervises."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

from rallypoint.backends.contract import BackendError
from rallypoint.supervision.record import Holder

__all__ = ["BEAT", "Heart"]

log = logging.getLogger(__name__)

#: Seconds between two beats.
BEAT = 1.0

Beat = Callable[[str, dict[str, str], bool], Awaitable[str]]


class Heart:
    """The heart of one backend. `beat` sends the id, the held jobs and whether this is the last beat; it returns the file."""

    def __init__(self, beat: Beat) -> None:
        self.id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.jobs: dict[str, str] = {}
        self._beat, self._users = beat, 0
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._file = ""

    @property
    def beats(self) -> bool:
        """Whether this process supervises, or is about to."""
        return self._users > 0

    async def join(self, name: str) -> Holder:
        """Beat until `leave` was called as often; return the name under which records know this process."""
        self._users += 1
        try:
            async with self._changing:
                if self._task is None:
                    self._file = await self._beat(self.id, dict(self.jobs), False)
                    self._task = asyncio.create_task(self._run(), name="heartbeat")
        except BaseException:
            self._users -= 1
            raise
        return Holder(id=self.id, name=name, host=socket.gethostname(), pid=os.getpid(), heartbeat=self._file)

    async def leave(self) -> None:
        """Stop to beat after the last user has left."""
        self._users -= 1
        async with self._changing:
            if self._users or self._task is None:
                return
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])
            try:
                await self._beat(self.id, {}, True)
            except BackendError as error:
                log.info("this supervisor has ended, but cannot remove its heartbeat from the ledger: %s", error)

    async def _run(self) -> None:
        troubled = False
        while True:
            await asyncio.sleep(BEAT)
            try:
                await self._beat(self.id, dict(self.jobs), False)
                troubled = False
            except BackendError as error:
                if not troubled:
                    log.warning(
                        "this supervisor cannot send its heartbeat to the ledger (%s); retrying every %g s", error, BEAT
                    )
                troubled = True
