"""What a process and its descendants cost, and how to end them; read from /proc of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["PEERS", "cpu_seconds", "descendants", "kill", "memory", "tree"]

#: Where the other launchers' commands are (tools/peers.py).
PEERS = Path(__file__).parents[1] / ".make" / "peers" / "bin"


def descendants(root: int) -> list[int]:
    """Return the children of a process, their children, and so on; whoever has no parent left is not among them."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(below)
    return found


def tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    return [root, *descendants(root)]


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(folder.name), int(_fields(int(folder.name))[1])


def _fields(pid: int) -> list[str]:
    """Return what stands behind the name in `stat`: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return how long the threads of processes have been on a CPU so far; one that is gone counts nothing."""
    used = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                used += int(path.read_text().split()[0])
    return used / 1e9


def memory(pids: Iterable[int], kind: str) -> float:
    """Return the `Rss` or `Pss` of processes together, in MB; one that is gone counts nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))
    return total * 1024 / 1e6


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes; those that are gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
