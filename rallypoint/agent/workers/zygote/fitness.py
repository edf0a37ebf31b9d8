"""Whether forks of this process are sound: nothing may run or be held here that a fork would only seem to have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["unfit"]

_TASKS = Path("/proc/self/task")

#: Parts of torch that hold a device; a context does not survive a fork.
_DEVICES = ("cuda", "xpu", "mtia", "npu", "hpu")


def unfit() -> str:
    """Return why forks of this process would not be sound, in one line; "" when they would."""
    held = [name for name in _DEVICES if _says(name, "is_initialized")]
    if held:
        return f"torch.{held[0]} was initialised during the preload; a device context does not survive a fork"
    poisoned = _trial()
    if poisoned:
        return f"torch.{poisoned} counted its devices during the preload and does not work after a fork"
    threads = _threads()
    if threads:
        return f"{len(threads)} threads run after the preload ({', '.join(threads[:5])}); a forked process would not have them"
    return ""


def _says(device: str, question: str) -> bool:
    module = getattr(sys.modules.get("torch"), device, None)
    ask = getattr(module, question, None)
    return bool(ask()) if callable(ask) else False


def _trial() -> str:
    """Fork once and return which device refuses to work there. Pools that end at a fork by themselves are ended by it."""
    pid = os.fork()
    if pid == 0:
        bad = [i for i, name in enumerate(_DEVICES, start=1) if _says(name, "_is_in_bad_fork")]
        os._exit(bad[0] if bad else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _DEVICES[code - 1] if 0 < code <= len(_DEVICES) else ""


def _threads() -> list[str]:
    """Return the names of the threads besides this one."""
    names = []
    for task in _TASKS.iterdir():
        if task.name != str(os.getpid()):
            try:
                names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:  # it has ended meanwhile
                continue
    return names
