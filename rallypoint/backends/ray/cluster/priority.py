"""The CPU priority of an actor, which the processes that it starts inherit.

By default Ray adds 15 to the niceness of each worker process, so on a machine with few cores, all other processes delay the
restart of a training worker. With this module, actors have the niceness of the raylet, as processes of the local backend have
that of their supervisor. Imports nothing of Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

__all__ = ["SETTING", "match_priority"]

log = logging.getLogger(__name__)

#: Environment variable of Ray's nodes with what is added to the niceness of a worker process; processes of the node inherit it.
SETTING = "RAY_worker_niceness"

#: A thread that starts meanwhile has the niceness of the thread that starts it, so more than two looks are rare.
_LOOKS = 10


def match_priority(parent: int, setting: str | None) -> None:
    """Give this process the niceness of its parent, the raylet, where that is lower and `setting` is not set.

    A process that must not do this (it needs CAP_SYS_NICE) keeps its niceness, and logs what to do. So does one whose parent is
    in another PID namespace (the number 0), without a log line.
    """
    wanted = _niceness(parent) if parent and setting is None else None
    if wanted is None:
        return
    try:
        for _ in range(_LOOKS):
            late = [thread for thread in _threads() if (known := _niceness(thread)) is not None and known > wanted]
            for thread in late:
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread, wanted)
            if not late:
                return
    except PermissionError:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        log.warning(
            "this actor and its child processes have a lower CPU priority than the raylet (niceness %d instead of %d), because "
            "Ray raised their niceness and the actor has no permission to lower it (CAP_SYS_NICE); to avoid this, start the "
            "Ray nodes with %s=0",
            niceness,
            wanted,
            SETTING,
        )


def _threads() -> list[int]:
    """Return the threads of this process: on Linux, each has a niceness of its own."""
    return [int(path.name) for path in Path("/proc/self/task").iterdir()]


def _niceness(process: int) -> int | None:
    """Return the niceness of a process or thread; None when it has ended."""
    try:
        return os.getpriority(os.PRIO_PROCESS, process)
    except ProcessLookupError:
        return None
