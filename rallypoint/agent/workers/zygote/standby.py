"""The agent's hand on one standby: a fork that is being born, waits for a command, or has become a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from rallypoint.agent.workers.reaper import Ended, Reaper
from rallypoint.agent.workers.spawner import Command
from rallypoint.agent.workers.zygote.messages import Memory, Order, frame, receive

__all__ = ["Standby", "StandbyLostError"]

#: Streams of a command by the number of their descriptor.
_STDOUT, _STDERR = 1, 2


class StandbyLostError(Exception):
    """A standby ended, or did not answer, before it became a worker: another one can."""


class Standby:
    """One fork; `changed` is called when it is ready, and when it ended before it became a worker."""

    def __init__(
        self, reaper: Reaper, line: socket.socket, changed: Callable[[Standby], None], *, generation: int, slot: int
    ) -> None:
        self._reaper, self._line, self._changed = reaper, line, changed
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[dict[str, Any]] | None = None
        self._ended: Ended | None = None
        self._code: int | None = None
        self.generation, self.slot = generation, slot
        self.settled: asyncio.Future[bool] = self._loop.create_future()
        self.pid = 0
        self.ready = self.lost = self.taken = False
        self.memory = Memory()
        self.trouble = ""

    def born(self, pid: int, start: dict[str, Any]) -> None:
        """Watch it as a child of ours, and let it begin."""
        self.pid = pid
        self._reaper.watch(pid, self._over)
        self._loop.add_reader(self._line, self._heard)
        try:
            self._line.send(frame(start))
        except OSError:  # it has just ended, and the reaper tells so
            self._settle(ready=False)

    def unborn(self) -> None:
        """There was no room for it, or nobody to bear it."""
        self._settle(ready=False)
        self._close()

    async def start(self, command: Command, startup: str, ended: Ended) -> int:
        """Become `command` and return the process's number; `ended` is called when it has ended.

        Raises `OSError` when the command cannot be started, and `StandbyLostError` when this one cannot become anything.
        """
        self.taken = True
        given = [(number, fd) for number, fd in ((_STDOUT, command.stdout), (_STDERR, command.stderr)) if fd is not None]
        order = Order(
            argv=tuple(command.argv),
            env=command.env,
            cwd=command.cwd,
            startup=startup,
            streams=tuple(number for number, _ in given),
            keep=command.keep,
        )
        self._told = self._loop.create_future()
        data = frame(order.to_json())
        try:
            sent = socket.send_fds(self._line, [data], [fd for _, fd in given] + list(command.keep))
            if sent < len(data):
                await self._loop.sock_sendall(self._line, data[sent:])
            answer = await self._told
        except OSError as error:
            raise StandbyLostError(str(error)) from error
        finally:
            self._close()
        if "unable" in answer:
            raise StandbyLostError(answer["unable"])
        if "failed" in answer:
            number, text, name = answer["failed"]
            raise OSError(number, text, name)
        self._ended = ended
        if self._code is not None:
            ended(self._code)
        return self.pid

    def dismiss(self) -> None:
        """Let it go; it ends when its line does."""
        self._settle(ready=False)
        self._close()

    def kill(self) -> None:
        """End it now, whatever it does."""
        self.dismiss()
        if self.pid and self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _heard(self) -> None:
        try:
            message, _ = receive(self._line)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._loop.remove_reader(self._line)
            self._gone()
        elif "ready" in message:
            self.memory, self.trouble, self.ready = Memory(**message["ready"]), message["trouble"], True
            self._settle(ready=True)
            self._changed(self)
        elif self._told is not None and not self._told.done():
            self._told.set_result(message)

    def _over(self, code: int) -> None:
        self._code = code
        if self._ended is not None:
            self._ended(code)
        else:
            self._gone()

    def _gone(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_exception(ConnectionResetError("it exited before it received the command"))
        self._settle(ready=False)
        if not self.lost:
            self.lost = True
            self._changed(self)

    def _settle(self, *, ready: bool) -> None:
        if not self.settled.done():
            self.settled.set_result(ready)

    def _close(self) -> None:
        if self._line.fileno() >= 0:
            self._loop.remove_reader(self._line)
            self._line.close()
