"""Threads of a process that wait in a circle for native mutexes of each other, as the kernel and the mutexes show them.

The kernel shows at which address a thread waits (`/proc/PID/task/TID/syscall`), and glibc's mutex has its owner beside the word
at that address. Both need the right to trace the process, which an ancestor has as a rule; without it no cycle is found. A lock
of Python (`threading.Lock`) has no owner, since any thread may release it, and is never part of a cycle.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["find_cycle", "lock_owners"]

#: Number of the system call `futex`, by machine.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())

#: A mutex that is taken waits with this operation (private or shared), for its word not to be this value any more.
_WAIT, _PRIVATE, _CONTENDED = 0, 128, 2

#: The word, how often it was taken, and the thread that owns it.
_MUTEX = struct.Struct("<iIi")


def lock_owners(pid: int) -> dict[int, int]:
    """Return the owner of the mutex that each thread of a process waits for; threads that wait for none are left out."""
    try:
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return {}
    try:
        found = {thread: _owner(pid, thread, memory) for thread in threads}
    finally:
        os.close(memory)
    return {thread: owner for thread, owner in found.items() if owner in threads}


def _owner(pid: int, thread: int, memory: int) -> int:
    """Return the thread that owns the mutex for which a thread waits, 0 where it waits for none."""
    try:
        call = Path(f"/proc/{pid}/task/{thread}/syscall").read_text(encoding="ascii").split()
        if len(call) < 4 or call[0] != _FUTEX:
            return 0
        address, operation, value = (int(word, 16) for word in call[1:4])
        if operation & ~_PRIVATE != _WAIT or value != _CONTENDED:
            return 0
        word, _count, owner = _MUTEX.unpack(os.pread(memory, _MUTEX.size, address))
    except (OSError, ValueError, OverflowError, struct.error):
        return 0
    return owner if word == _CONTENDED else 0


def find_cycle(pid: int, owners: Callable[[int], Mapping[int, int]] = lock_owners) -> str:
    """Return the circle in which the main thread of a process waits, as a sentence; "" where it waits in none."""
    waits_for = owners(pid)
    path = [pid]
    while path[-1] in waits_for:
        following = waits_for[path[-1]]
        if following in path:
            return ", which waits for a lock held by ".join(f"thread {thread}" for thread in (*path, following))
        path.append(following)
    return ""
