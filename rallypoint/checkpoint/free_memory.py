"""Free memory of the machine or container, checked before large allocations: exceeding it kills the whole pod."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rallypoint.checkpoint.errors import NoRoomError

__all__ = ["free_memory", "require_memory"]

_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def require_memory(folder: Path, size: int, what: str) -> None:
    """Raise `NoRoomError`, which says how many bytes are missing, unless `size` bytes of memory are free for `folder`."""
    free = free_memory(folder)
    if free < size:
        raise NoRoomError(
            f"{folder}: not enough space for {what}: {size:,} bytes needed, {free:,} free, {size - free:,} missing"
        )


def free_memory(folder: Path, *, cgroups: Path = _CGROUPS, meminfo: Path = _MEMORY) -> int:
    """Return how many bytes are free in the file system of `folder`, in the machine, and in our control group: the least."""
    status = os.statvfs(folder)
    limits = [status.f_bavail * status.f_frsize]
    available = _numbers(meminfo).get("MemAvailable:")
    if available is not None:
        limits.append(1024 * available)
    limits.extend(_groups_room(cgroups))
    return max(0, min(limits))


def _groups_room(cgroups: Path) -> list[int]:
    """Version 2 counts shared memory as the group's; what can be dropped at once, the cache of files, is not in the way."""
    try:
        limit = (cgroups / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroups / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return []
    if not limit.isdecimal():
        return []
    cache = _numbers(cgroups / "memory.stat")
    return [int(limit) - used + cache.get("inactive_file", 0) + cache.get("active_file", 0)]


def _numbers(path: Path) -> Mapping[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {words[0]: int(words[1]) for words in fields if len(words) > 1 and words[1].isdecimal()}
