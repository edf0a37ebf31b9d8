"""The collectives of each worker: of torch's flight recorder where the worker answers, else the last one of its pulse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rallypoint.wire.hang import CallSeen, GroupSeen
from rallypoint.wire.progress import Life
from rallypoint.wire.pulse import Pulse

__all__ = [
    "OPERATIONS",
    "Collectives",
    "ask",
    "called",
    "files",
    "has_finished",
    "read_answer",
    "read_collectives",
    "waits_elsewhere",
]

#: Seconds in which a worker has answered, unless its GIL is held.
_WITHIN = 0.7

_LOOK_EVERY = 0.02

#: Characters of a collective or of a group's name; more says little. Bytes of an answer.
_MOST, _ANSWER = 120, 64 * 1024

#: The names of training/startup/watching.py, in their order.
OPERATIONS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
    *("all_reduce_coalesced", "all_gather_coalesced", "barrier", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
    *("scatter_object_list", "send", "new_group", "init_process_group", "destroy_process_group"),
)


_LEAVES = "destroy_process_group"

#: Calls that wait for the store, or for messages between two ranks, which the flight recorder does not have.
_NOT_RECORDED = frozenset({"send", "recv", "monitored_barrier", "new_group", "init_process_group", "destroy_process_group"})


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """Answer of a worker: its last collective, and its process groups (none where one of them cannot be described)."""

    last: str = ""
    groups: tuple[GroupSeen, ...] = ()


def read_answer(text: str) -> Collectives:
    """Return the answer of a worker; raises `ValueError` for text that is none: a worker is the user's code."""
    told = json.loads(text)
    if not isinstance(told, dict) or not isinstance(told.get("groups"), list):
        raise ValueError("pending collectives reported by a worker: expected an object with the key 'groups'")  # noqa: TRY004  as of text that is no JSON
    return Collectives(last=str(told.get("last", "")).strip()[:_MOST], groups=tuple(_groups(told["groups"])))


def _groups(told: Sequence[object]) -> Iterator[GroupSeen]:
    for one in told:
        if not isinstance(one, list) or len(one) != 6 or not isinstance(one[5], list):
            raise ValueError(
                "pending collectives reported by a worker: "
                "expected a list of six values for each process group, the last of them a list"
            )
        name, (first, step, size, number) = str(one[0])[:_MOST], map(int, one[1:5])
        if step < 1 or size < 1:
            raise ValueError("pending collectives reported by a worker: expected each rank at most once in a process group")
        pending = tuple(CallSeen(operation=str(operation)[:_MOST], number=int(called)) for operation, called in one[5])
        yield GroupSeen(name=name, first=first, step=step, size=size, called=number, pending=pending)


def waits_elsewhere(call: str) -> bool:
    """Return whether the main thread is in a `call` (as `called` returns it) that does not wait for a recorded collective.

    A rank that is in one waits for none of its pending collectives, so these say nothing.
    """
    return call.endswith("not returned") and call.partition(" ")[0] in _NOT_RECORDED


def called(pulse: Pulse) -> str:
    """Return the last collective that the start-up module has seen called by its name, "" where it has seen none."""
    if pulse.collectives == 0 or not 0 <= pulse.operation < len(OPERATIONS):
        return ""
    returned = "returned" if pulse.left >= pulse.collectives else "not returned"
    return f"{OPERATIONS[pulse.operation]} (call {pulse.collectives}), {returned}"


def has_finished(life: Life, pulse: Pulse) -> bool:
    """Return whether a worker that lives has published its exit status, or has destroyed its process groups as its last call.

    No other rank waits for it, and nothing is known of how long it may take for what is left.
    """
    return life.exit_status is not None or _has_left(pulse)


def _has_left(pulse: Pulse) -> bool:
    known = 0 <= pulse.operation < len(OPERATIONS)
    return pulse.collectives > 0 and known and OPERATIONS[pulse.operation] == _LEAVES and pulse.left >= pulse.collectives


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


async def read_collectives(asked: Sequence[Path], within: float = _WITHIN) -> dict[Path, Collectives]:
    """Return the answers of workers, by the files of their stacks, as soon as all have answered or time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    waiting, found = set(asked), dict[Path, Collectives]()
    while waiting:
        for stacks in tuple(waiting):
            with contextlib.suppress(OSError):
                text = _read(files(stacks)[1])
                waiting.discard(stacks)
                with contextlib.suppress(ValueError, TypeError):
                    found[stacks] = read_answer(text)
        if not waiting or loop.time() >= until:
            break
        await asyncio.sleep(_LOOK_EVERY)
    return found


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_ANSWER).decode(errors="replace")
