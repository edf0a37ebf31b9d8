"""A container as processes of this machine: the first one, and everybody whom it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tests.emulator.kubelet.logs import ContainerLog
from tests.leftovers import marked_with

__all__ = ["MARK", "ContainerProcess"]

#: The variable that tells which container a process belongs to: it is inherited, and found where process groups are left.
MARK = "EMULATED_CONTAINER"


class ContainerProcess:
    """A running container. Its end is the end of its first process; all others are killed then, as with a PID namespace."""

    def __init__(self, mark: str, log: ContainerLog) -> None:
        self._mark, self._log = mark, log
        self._process: asyncio.subprocess.Process | None = None
        self._output: BinaryIO | None = None
        self._told = False

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Raises OSError where there is no such program."""
        # A pipe of our own: asyncio's would keep `wait` from returning while anybody holds its other end.
        read, write = os.pipe()
        self._output = os.fdopen(read, "rb", buffering=0)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                env={**environment, MARK: self._mark},
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise
        finally:
            os.close(write)

    async def wait(self) -> int:
        """Read what it writes, wait for its end, kill what it left; the exit code, 128 + n for a signal."""
        assert self._process
        assert self._output
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._output
        )
        reading = asyncio.create_task(self._read(reader))
        try:
            code = await self._process.wait()
            await self.kill()
            await reading
        finally:
            reading.cancel()
            transport.close()
            self._log.close()
        return 128 - code if code < 0 else code

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 16):
            self._log.feed(data)

    def terminate_once(self) -> None:
        """SIGTERM to the first process alone, as a container runtime does; the second call does nothing."""
        if self._process and self._process.returncode is None and not self._told:
            self._told = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL to all of them, until nobody is left: who forks while being looked for is found the next time."""
        self._kill_group()
        while await asyncio.to_thread(self.kill_found):  # noqa: ASYNC110 -- nobody tells when a stranger ends
            await asyncio.sleep(0.01)

    async def freeze(self) -> None:
        """SIGSTOP to all of them, until nobody new is found: a machine without power sends no more packets."""
        known: set[int] = set()
        while found := {one.pid for one in await asyncio.to_thread(marked_with, f"{MARK}={self._mark}")} - known:
            known |= found
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def kill_found(self) -> bool:
        """SIGKILL to all of them who are found now; whether there was anybody."""
        self._kill_group()
        found = marked_with(f"{MARK}={self._mark}")
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return bool(found)

    def _kill_group(self) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
