"""Kill worker processes that do not exit after their script has ended.

A worker publishes its exit status after its script has returned, its threads were joined and its exit handlers have run
(training/startup). Python then runs the destructors of the remaining objects. A destructor that never returns keeps the
process alive, and the job could not end. So the agent kills the process after `exit_grace` and uses the published status.
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
    """Start of the teardown of each process, by process ID, in seconds of a monotonic clock."""

    since: dict[int, float] = field(default_factory=dict)

    def look(self, pids: Iterable[int], *, now: float, grace: float) -> tuple[Teardowns, frozenset[int]]:
        """Return the state after a check at `now` that found `pids` in their teardown, and the overdue ones of them."""
        since = {pid: self.since.get(pid, now) for pid in pids}
        overdue = frozenset(pid for pid, began in since.items() if now - began >= grace)
        return dataclasses.replace(self, since=since), overdue


async def watch_teardowns(group: WorkerGroup, exit_status: Callable[[Worker], ExitStatus | None], *, grace: float) -> None:
    """Kill each worker that is in its teardown for longer than `grace` seconds (0: never). Runs until cancelled."""
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
                "exit_grace=%gs; sending SIGKILL. The usual cause is a destructor (__del__) that does not return while Python "
                "shuts down. Threads still running: %s",
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
    """Return the names of the first threads of a process."""
    names = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"))[:_THREADS]:
        try:
            names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
        except OSError:  # it has ended meanwhile
            continue
    return names
