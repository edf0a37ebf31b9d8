"""Ends workers whose script is over and whose interpreter does not get through its teardown.

A worker publishes its exit status when its script has returned, its threads are joined and its exit handlers are through
(training/startup). What is left are destructors, and one that waits for ever would keep the whole job from ending.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.workers.group import Worker, WorkerGroup
from rallypoint.wire.progress import ExitStatus

__all__ = ["Teardowns", "watch_teardowns"]

log = logging.getLogger("rallypoint.workers")

#: Longest and shortest pause between two checks, in seconds.
_LONGEST, _SHORTEST = 1.0, 0.05

#: Names of threads that a warning lists.
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Teardowns:
    """Since when each process is in its teardown, by process number, in seconds of a clock that never goes back."""

    since: dict[int, float] = field(default_factory=dict)

    def look(self, pids: Iterable[int], *, now: float, grace: float) -> tuple[Teardowns, frozenset[int]]:
        """Return the state after a look at `now` that found `pids` in their teardown, and which of them are overdue."""
        since = {pid: self.since.get(pid, now) for pid in pids}
        overdue = frozenset(pid for pid, began in since.items() if now - began >= grace)
        return dataclasses.replace(self, since=since), overdue


async def watch_teardowns(group: WorkerGroup, exit_status: Callable[[Worker], ExitStatus | None], *, grace: float) -> None:
    """End each worker that is in its teardown for longer than `grace` seconds; 0 is off. Runs until it is cancelled."""
    if grace <= 0:
        return
    loop, state = asyncio.get_running_loop(), Teardowns()
    while True:
        await asyncio.sleep(max(_SHORTEST, min(_LONGEST, grace / 4)))
        found = {worker.pid: (worker, status) for worker, status in _in_teardown(group.workers, exit_status)}
        state, overdue = state.look(found, now=loop.time(), grace=grace)
        for pid in overdue:
            worker, status = found[pid]
            log.warning(
                "worker rank=%d pid=%d: the script ended (exit code %s), but its process did not exit within "
                "exit_grace=%gs; sending SIGKILL. Usually a destructor blocks the exit of Python. Threads still running: %s",
                worker.place.rank,
                pid,
                "unknown" if status.code is None else status.code,
                grace,
                ", ".join(_threads(pid)),
            )
            group.end(worker, status.code)


def _in_teardown(
    workers: Iterable[Worker], exit_status: Callable[[Worker], ExitStatus | None]
) -> Iterable[tuple[Worker, ExitStatus]]:
    for worker in workers:
        status = exit_status(worker) if worker.code is None and worker.published is None else None
        # Another process of the worker, such as the Python of a shell script, has a status of its own.
        if status is not None and status.pid == worker.pid:
            yield worker, status


def _threads(pid: int) -> list[str]:
    """Return the names of a process's threads, the first of many."""
    names = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"))[:_THREADS]:
        try:
            names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
        except OSError:  # it has ended meanwhile
            continue
    return names
