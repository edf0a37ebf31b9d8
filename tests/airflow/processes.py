"""Processes of this machine as /proc tells them: by session, by title, by the job that they belong to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "kill", "of_job", "processes"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """A live process: its parent, its session (kept by whatever does not leave it), and its title."""

    pid: int
    parent: int
    session: int
    title: str


def processes() -> Iterator[Process]:
    """Yield every live process but this one; zombies are not alive."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found = _read(entry)
                if found is not None:
                    yield found


def of_job(name: str, uid: str) -> list[Process]:
    """Return what runs for a job: its nodes with all that they started, its coordinator, supervisors that it was left to."""
    mark = f"RALLYPOINT_JOB_MARK={uid}/".encode() if uid else b"\0no job was seen"
    return [
        process for process in processes() if f"supervise {name} " in f"{process.title} " or _started_with(process.pid, mark)
    ]


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _read(entry: Path) -> Process | None:
    state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
    if state in "ZX":
        return None
    title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid=int(entry.name), parent=int(parent), session=int(session), title=title)


def _started_with(pid: int, variable: bytes) -> bool:
    try:
        return variable in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
