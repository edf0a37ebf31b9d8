"""`rallypoint-agent server`: run a server until a file requests its end, then exit with code 0.

Another controller may count the pods of a job, and count a deleted pod as lost (AppWrapper). There a server has to end inside
its pod once all drivers have succeeded. The file is an annotation of the pod, which the kubelet writes (downward API).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rallypoint.agent.linux import become_subreaper, children
from rallypoint.agent.signals import SIGNALS, signal_group
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.wire.exits import describe_exit

__all__ = ["Server", "server"]

log = logging.getLogger("rallypoint.server")

#: Seconds between two looks at the file.
_LOOK = 0.25

#: Seconds between two looks at a process group that is being killed.
_RECHECK = 0.01

#: Exit code of a command that cannot be started, as a shell has it.
_NOT_STARTED = 127


class Server:
    """Runs one command. `run` once, in the main thread."""

    def __init__(self, argv: Sequence[str], *, until: Path, grace: float) -> None:
        self._argv, self._until, self._grace = tuple(argv), until, grace
        become_subreaper()
        self._reaper = Reaper()
        self._spawner = Spawner(self._reaper)
        self._pid = 0
        self._left: signal.Signals | None = None

    async def run(self) -> int:
        """Run the command to its end and return the exit code of the pod.

        It is 0 if the end was requested, whatever the code of the command. A command that another signal to this process
        ended has failed, even with exit code 0: its pod was taken away while the drivers still need the server.
        """
        if self._requested():
            log.info(
                "all driver roles of the job have succeeded; rallypoint-agent does not start the program of this server role"
            )
            return 0
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._forward, number)
        ended: asyncio.Future[int] = loop.create_future()
        try:
            self._pid = await self._spawner.spawn(Command(argv=self._argv, env=os.environ), ended.set_result)
            if self._left is not None:  # while it was started
                self._forward(self._left)
            return self._code(await self._ended(ended))
        except OSError as error:
            log.error("rallypoint-agent cannot start the server: %s", error)  # noqa: TRY400  one line is enough
            return _NOT_STARTED
        finally:
            self._reaper.close()
            self._spawner.close()

    def _requested(self) -> bool:
        """Return whether the end is requested: the file has a content."""
        try:
            return self._until.stat().st_size > 0
        except OSError:
            return False

    def _forward(self, number: signal.Signals) -> None:
        self._left = number
        signal_group(self._pid, number)

    async def _ended(self, ended: asyncio.Future[int]) -> int:
        """Wait for the end of the command; once it is requested, send SIGTERM, and SIGKILL after the grace period."""
        deadline: float | None = None
        while not ended.done():
            if deadline is None and self._requested():
                deadline = time.monotonic() + self._grace
                log.info("all driver roles of the job have succeeded; sending SIGTERM to the server, grace=%gs", self._grace)
                signal_group(self._pid, signal.SIGTERM)
            elif deadline is not None and time.monotonic() >= deadline:
                log.warning("the server is still running %gs after SIGTERM; sending SIGKILL", self._grace)
                signal_group(self._pid, signal.SIGKILL)
            left = _LOOK if deadline is None else min(_LOOK, max(deadline - time.monotonic(), _RECHECK))
            await asyncio.wait({ended}, timeout=left)
        while signal_group(self._pid, signal.SIGKILL):  # noqa: ASYNC110  no event signals the end of a process group
            await asyncio.sleep(_RECHECK)
        for pid in children():  # left its process group
            _signal_one(pid)
        return ended.result()

    def _code(self, code: int) -> int:
        if self._requested():
            log.info("the server %s", _how(code))
            return 0
        if self._left is not None and code == 0:
            return 128 + self._left
        return code if code >= 0 else 128 - code


def server(args: argparse.Namespace) -> int:
    """Run a server to its end and return the exit code."""
    argv = (args.training_script, *args.training_script_args)

    async def serve() -> int:
        return await Server(argv, until=args.until, grace=args.grace).run()

    return asyncio.run(serve())


def _how(code: int) -> str:
    return describe_exit(code) if code >= 0 else f"was {describe_exit(code)}"


def _signal_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
