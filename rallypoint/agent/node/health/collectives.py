"""Which collective each worker has called last: of torch's flight recorder where the worker answers, else of its pulse."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from rallypoint.wire.pulse import Pulse

__all__ = ["OPERATIONS", "ask", "called", "files", "read_collectives"]

#: Seconds in which a worker has answered, unless its GIL is held.
_WITHIN = 0.7

_LOOK_EVERY = 0.02

#: Characters of an answer; more says little.
_MOST = 120

#: The names of training/startup/watching.py, in their order.
OPERATIONS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
    *("all_reduce_coalesced", "all_gather_coalesced", "barrier", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
    *("scatter_object_list", "send", "new_group", "init_process_group", "destroy_process_group"),
)


def called(pulse: Pulse) -> str:
    """Return the last collective that the start-up module has seen called by its name, "" where it has seen none."""
    if pulse.collectives == 0 or not 0 <= pulse.operation < len(OPERATIONS):
        return ""
    returned = "returned" if pulse.left >= pulse.collectives else "not returned"
    return f"{OPERATIONS[pulse.operation]} (call {pulse.collectives}), {returned}"


def files(stacks: Path) -> tuple[Path, Path]:
    """Return where a worker with this file for its stacks is asked for its collectives, and where it answers."""
    return Path(f"{stacks}.ask"), Path(f"{stacks}.told")


def ask(stacks: Path) -> bool:
    """Ask a worker; return whether there is one that listens."""
    pipe, told = files(stacks)
    try:
        if not stat.S_ISFIFO(pipe.stat().st_mode):
            return False
        told.unlink(missing_ok=True)
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(fd, b"?") == 1
    except OSError:
        return False
    finally:
        os.close(fd)


async def read_collectives(asked: Sequence[Path], within: float = _WITHIN) -> dict[Path, str]:
    """Return what workers have answered who were asked, by the files of their stacks, as soon as all have or time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    waiting, found = set(asked), dict[Path, str]()
    while waiting:
        for stacks in tuple(waiting):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found[stacks] = files(stacks)[1].read_text(encoding="utf-8").strip()[:_MOST]
                waiting.discard(stacks)
        if not waiting or loop.time() >= until:
            break
        await asyncio.sleep(_LOOK_EVERY)
    return found
