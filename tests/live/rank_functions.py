"""Functions that ranks run in tests of `launch_agent`. Each rank imports this module, so it imports little."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

__all__ = ["die", "double", "fail_on_1", "stay"]


def double(x: int) -> tuple[int, int]:
    """Return the rank and twice the argument."""
    return int(os.environ["RANK"]), 2 * x


def fail_on_1() -> None:
    """Fail on rank 1, and wait on the others."""
    if os.environ["RANK"] == "1":
        raise ValueError("loss is nan")
    threading.Event().wait()


def die() -> None:
    """End by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def stay(folder: str) -> None:
    """Tell the process id, and wait."""
    rank = os.environ["RANK"]
    Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    threading.Event().wait()
