"""The agent's side of a job's failover extension: a process that is asked, and that cannot keep the agent from its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.wire import codec, env
from rallypoint.wire.failover import Failover, Failure
from rallypoint.wire.masked import Masking, mask_of_plan, masked_json
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.python import run_module

__all__ = ["Advice", "Adviser", "extension_command"]

log = logging.getLogger("rallypoint.extension")

#: Seconds that an extension has for one answer, once it is loaded.
_ANSWER_WITHIN = 10.0

#: Seconds that a failure waits for an extension that is being loaded: it may import torch.
_READY_WITHIN = 60.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the extension says, and why it could not say anything, if so."""

    failover: Failover
    note: str = ""


def extension_command(plan: Plan, base: Mapping[str, str], *, line: int | None = None) -> Command:
    """Return the command that loads the plan's extension, and tries it only where it is given no line."""
    beside = ("--beside", plan.entrypoint) if plan.entry is Entry.SCRIPT else ()
    answering = () if line is None else ("--line", str(line))
    variables = {**base, **plan.env}
    variables.pop(env.SECRET, None)  # as for a worker: it is the user's code
    variables.setdefault("OMP_NUM_THREADS", "1")
    argv = run_module("rallypoint.agent.node.extension", *beside, *answering, plan.failures.failover_extension)
    return Command(argv=argv, env=variables, cwd=plan.workdir, keep=() if line is None else (line,))


class _Host:
    """The process that has loaded the class."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid = 0

    def __init__(self, mask: Masking) -> None:
        self._mask = mask

    def ended(self, _code: int) -> None:
        """Note that it has ended: its number may be somebody else's from now on."""
        self.pid = 0

    async def hear(self) -> dict[str, object]:
        """Return its next word; raises `EOFError` when it has ended."""
        said = await self.reader.readline()
        if not said:
            raise EOFError
        # The class is the user's: its errors may quote a secret of the job's environment.
        message: dict[str, object] = masked_json(json.loads(said), self._mask)
        return message

    async def ask(self, failure: Failure) -> Advice:
        """Return its answer; raises `EOFError` or `OSError` when it has ended."""
        self.writer.write(codec.dumps(failure).encode() + b"\n")
        await self.writer.drain()
        said = await self.hear()
        return Advice(failover=Failover(said["failover"]), note=str(said["note"]))

    def kill(self) -> None:
        """End it now, with all that it started."""
        self.writer.close()
        if self.pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Adviser:
    """Asks the plan's extension, which is loaded ahead and once more whenever it has failed."""

    def __init__(self, plan: Plan, spawner: Spawner, *, answer_within: float = _ANSWER_WITHIN) -> None:
        self._plan, self._spawner, self._answer_within = plan, spawner, answer_within
        self._loading: asyncio.Task[_Host] | None = None
        self._hosts: list[_Host] = []

    def begin(self, refused: Callable[[str], None]) -> None:
        """Load the extension, if there is one; `refused` is told why it cannot be loaded."""

        def check(loading: asyncio.Task[_Host]) -> None:
            if not loading.cancelled() and isinstance(loading.exception(), ConfigError):
                refused(str(loading.exception()))

        if self._plan.failures.failover_extension:
            self._loading = asyncio.create_task(self._load())
            self._loading.add_done_callback(check)

    async def ask(self, failure: Failure) -> Advice:
        """Return what the extension says; NORMAL with a note when it does not, in time."""
        name = f"failover extension {self._plan.failures.failover_extension}"
        if self._loading is None:
            return Advice(failover=Failover.NORMAL)
        try:
            host = await asyncio.wait_for(asyncio.shield(self._loading), _READY_WITHIN)
        except asyncio.TimeoutError:  # it may still come
            return self._none(f"{name} did not load within {_READY_WITHIN:g} s")
        except (ConfigError, OSError) as error:
            self._again()
            return self._none(str(error))
        try:
            return await asyncio.wait_for(host.ask(failure), self._answer_within)
        except asyncio.TimeoutError:
            self._again()
            return self._none(f"{name} did not answer within {self._answer_within:g} s")
        except (EOFError, OSError, ValueError):
            self._again()
            return self._none(f"{name} exited without an answer")

    def close(self) -> None:
        """End its process."""
        if self._loading is not None:
            self._loading.cancel()
        for host in self._hosts:
            host.kill()
        self._hosts = []

    def _none(self, trouble: str) -> Advice:
        log.warning("%s", trouble)
        return Advice(failover=Failover.NORMAL, note=f"{trouble}; using NORMAL")

    def _again(self) -> None:
        self.close()
        self._loading = asyncio.create_task(self._load())
        # Whoever asks next is told; nobody else wants to know.
        self._loading.add_done_callback(lambda loading: loading.cancelled() or loading.exception())

    async def _load(self) -> _Host:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                host = await self._spawn(ours, theirs)
        except BaseException:
            ours.close()
            raise
        try:
            hello = await host.hear()
        except (EOFError, OSError) as error:
            name = self._plan.failures.failover_extension
            raise ConfigError(f"failover extension {name}: its process exited during import of the class") from error
        if "error" in hello:
            raise ConfigError(str(hello["error"]))
        return host

    async def _spawn(self, ours: socket.socket, theirs: socket.socket) -> _Host:
        host = _Host(mask_of_plan(self._plan))
        host.pid = await self._spawner.spawn(extension_command(self._plan, os.environ, line=theirs.fileno()), host.ended)
        host.reader, host.writer = await asyncio.open_connection(sock=ours)
        self._hosts.append(host)
        return host
