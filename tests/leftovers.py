"""Finding processes that outlived the test that started them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Leftover", "marked_with"]


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A live process: its number and its command line, as `ps` shows it."""

    pid: int
    command: str


def marked_with(mark: str) -> tuple[Leftover, ...]:
    """Return the live processes, this one apart, whose environment at their start contained `mark`.

    Zombies are not among them: they have no environment left, and their parent owns their exit code.
    """
    needle = mark.encode()
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return tuple(_describe(pid) for pid in pids if pid != os.getpid() and needle in _environment(pid))


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended meanwhile, or belongs to another user
        return b""


def _describe(pid: int) -> Leftover:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        command = b"(ended meanwhile)"
    return Leftover(pid=pid, command=command.replace(b"\0", b" ").decode(errors="replace").strip())
