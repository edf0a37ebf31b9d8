"""Native frames of workers that hang, and stacks of workers that do not respond, if py-spy is installed.

py-spy reads a process from outside, so it sees native frames (which lock, which system call), also of a stopped process. It
stops the process for a moment; if the process is stopped or waits for a disk, it reads only the memory and finds no native
frames. If py-spy is missing, may not trace or takes too long, only its frames are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.node.health.stacks import few, short

__all__ = ["NATIVE", "Spied", "find_py_spy", "read_spied", "spy"]

#: Native frames reported for a rank, the innermost first.
NATIVE = 4

#: The kernel's letters of processes that a tracer would wait for.
_FROZEN = frozenset("TtD")


@dataclass(frozen=True, kw_only=True)
class Spied:
    """A main thread: its Python `frames`, the `native` ones below the innermost of them; `text` has all threads."""

    frames: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    text: str = ""


def find_py_spy() -> str | None:
    """Return the path of py-spy: on PATH, or beside this Python; None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy") or shutil.which("py-spy", path=beside)


async def spy(program: str, processes: Mapping[int, str], within: float) -> dict[int, Spied]:
    """Dump the stacks of processes (by pid, with their state letter) together; leave out those that take too long."""
    seen = await asyncio.gather(*(_one(program, pid, state, within) for pid, state in processes.items()))
    return {pid: found for pid, found in zip(processes, seen, strict=True) if found is not None}


async def _one(program: str, pid: int, state: str, within: float) -> Spied | None:
    how = "--nonblocking" if state in _FROZEN else "--native"
    command = (program, "dump", "--json", "--full-filenames", how, "--pid", str(pid))
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        # In a thread: the agent reaps every child of its process, about which asyncio's own subprocesses write a warning.
        ran = await asyncio.to_thread(
            subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within, check=False
        )
        return read_spied(json.loads(ran.stdout), pid)
    return None


def read_spied(threads: Any, pid: int) -> Spied | None:
    """Return the main thread in the output of `py-spy dump --json`; None if there is none."""
    if not isinstance(threads, list):
        return None
    known = [thread for thread in threads if isinstance(thread, dict) and isinstance(thread.get("frames"), list)]
    main = next((thread for thread in known if thread.get("os_thread_id") == pid), None)
    if main is None:
        main = next((thread for thread in known if thread.get("thread_name") == "MainThread"), None)
    if main is None:
        return None
    told = [_frame(frame) for frame in main["frames"]]
    python = [text for text, native in told if not native]
    below = [text for text, native in told[: next((i for i, (_, native) in enumerate(told) if not native), 0)]]
    named = [text for text in below if not text.startswith("0x")]
    return Spied(frames=few(python), native=tuple((named or below)[:NATIVE]), text="\n".join(map(_thread, known)))


def _frame(frame: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the text of a frame, and whether the frame is native."""
    path, name, line = str(frame.get("filename", "")), str(frame.get("name", "")), frame.get("line", 0)
    if path.endswith(".py") or path.startswith("<"):
        return f"{short(path)}:{line} {name.rpartition('.')[2]}", False
    return f"{name} in {path.rpartition('/')[2]}", True


def _thread(thread: Mapping[str, Any]) -> str:
    lines = (f"  {_frame(frame)[0]}" for frame in thread["frames"])
    return "\n".join((f"Thread {thread.get('os_thread_id')} {thread.get('thread_name') or ''} (py-spy):", *lines))
