"""Starting processes without blocking the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rallypoint.agent.linux import die_with_parent
from rallypoint.agent.workers.reaper import Ended, Reaper

__all__ = ["Command", "Spawner", "Starter"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to be started.

    Attributes:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: where it starts; "" is where we are.
        stdout, stderr: file descriptors, or None to share ours.
        keep: further file descriptors that it inherits.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = ""
    stdout: int | None = None
    stderr: int | None = None
    keep: tuple[int, ...] = ()


class Starter(Protocol):
    """Whoever starts processes."""

    async def spawn(self, command: Command, ended: Ended) -> int:
        """Start a process in a session of its own and return its number; see `Spawner.spawn`."""
        ...


class Spawner:
    """Starts every process from one thread that lives as long as we do.

    The thread matters: the kernel kills a child when the *thread* that forked it ends, so a pool that lets idle threads go
    would take the workers with it.
    """

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
        self._prepare = die_with_parent()

    async def spawn(self, command: Command, ended: Ended) -> int:
        """Start a process in a session of its own and return its number; `ended` is called when it has ended.

        Raises `OSError` when it cannot be started (no such program, not executable, no such folder).
        """
        with self._reaper.birth():
            pid = await asyncio.get_running_loop().run_in_executor(self._thread, self._start, command)
            self._reaper.watch(pid, ended)
        return pid

    def close(self) -> None:
        """Let the thread end, and with it every child that still lives."""
        self._thread.shutdown(wait=False)

    def _start(self, command: Command) -> int:
        process = subprocess.Popen(
            list(command.argv),
            env=dict(command.env),
            cwd=command.cwd or None,
            stdin=subprocess.DEVNULL,
            stdout=command.stdout,
            stderr=command.stderr,
            pass_fds=command.keep,
            start_new_session=True,
            # Async-signal safe enough: it calls one C function that was looked up before, and allocates nothing of ours.
            preexec_fn=self._prepare,  # noqa: PLW1509
        )
        # The reaper alone waits for it: this object must neither do so when it is forgotten, nor warn that nobody did.
        process.returncode = 0
        return process.pid
