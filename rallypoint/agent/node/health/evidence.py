"""What can be found of workers that hang: each one's stacks, how the kernel sees it, how far it came.

A worker's Python is asked for its stacks by a signal. To a process that does not catch it that signal is the end, so it is sent
only to the process that says of itself that it does (wire/progress.py), and only while the kernel agrees: the signal is among
those that it catches, and the file that faulthandler writes to is still the one that we read. Between the look and the signal
its number cannot become that of another process: a pidfd stands for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rallypoint.agent.node.health.collectives import Collectives, ask, read_collectives, waits_elsewhere
from rallypoint.agent.node.health.locks import find_cycle
from rallypoint.agent.node.health.native import Spied, find_py_spy, spy
from rallypoint.agent.node.health.stacks import complete, main_frames
from rallypoint.wire.hang import STACK_SIGNAL, Evidence, GroupSeen, RankSeen

__all__ = ["STACKS_WITHIN", "Asked", "Subject", "ask_for_stacks", "read_stacks", "take"]

#: Seconds that the workers have to write their stacks; it is the work of a signal's handler.
STACKS_WITHIN = 3.0

_LOOK_EVERY = 0.02

#: The kernel's letters for that.
_STOPPED = frozenset("Tt")

#: Bytes that are read of one worker's stacks.
_MOST = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A worker that is asked: the process, the number of its file in it, the file, and where in it the answer begins."""

    local_rank: int
    pid: int
    stacks: int
    file: Path
    begin: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A worker that is looked into: its number in the world, whom to ask for its stacks, and how it is by now, without them."""

    rank: int
    asked: Asked
    look: Callable[[], RankSeen]


def ask_for_stacks(worker: Asked) -> Asked:
    """Ask one worker; the result says where its answer begins, or in `note` why it was not asked."""
    if worker.pid <= 0 or worker.stacks <= 0:
        return _not(worker, "its Python did not register the stack-dump signal")
    try:
        process = os.pidfd_open(worker.pid)
    except ProcessLookupError:
        return _not(worker, "the process has exited")
    except OSError as error:
        return _not(worker, f"cannot signal the process: {error.strerror}")
    try:
        if not _listens(worker):
            return _not(worker, "its Python no longer handles the stack-dump signal")
        begin = worker.file.stat().st_size
        signal.pidfd_send_signal(process, STACK_SIGNAL)
    except OSError as error:
        return _not(worker, f"cannot signal the process: {error.strerror}")
    finally:
        os.close(process)
    return dataclasses.replace(worker, begin=begin)


def _not(worker: Asked, note: str) -> Asked:
    return dataclasses.replace(worker, note=note)


def _listens(worker: Asked) -> bool:
    if Path(f"/proc/{worker.pid}/fd/{worker.stacks}").readlink() != worker.file.resolve():
        return False
    status = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8")
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)


async def read_stacks(asked: Sequence[Asked], within: float = STACKS_WITHIN) -> dict[int, str]:
    """Wait until all who were asked have answered, `within` seconds at the most; return what each has written by then."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    waiting = [worker for worker in asked if not worker.note]
    while True:
        texts = await asyncio.to_thread(lambda: {worker.local_rank: _read(worker) for worker in waiting})
        if all(map(complete, texts.values())) or loop.time() >= until:
            return texts
        await asyncio.sleep(_LOOK_EVERY)


def _read(worker: Asked) -> str:
    try:
        with worker.file.open("rb") as file:
            file.seek(worker.begin)
            return file.read(_MOST).decode(errors="replace")
    except OSError:
        return ""


def _frames_and_note(worker: Asked, text: str) -> tuple[tuple[str, ...], str]:
    """Return the frames of a worker, or else why there are none."""
    if worker.note:
        return (), worker.note
    frames = main_frames(text)
    return frames, "" if frames else f"no answer within {STACKS_WITHIN:g} s"


async def take(
    number: int, subjects: Sequence[Subject], *, round_: int, file: Path, py_spy: Callable[[], str | None] = find_py_spy
) -> Evidence:
    """Ask all workers for their stacks and return what was found, as the answer to request `number`; `file` gets all of it."""
    asked = await asyncio.to_thread(lambda: [_ask(subject) for subject in subjects])
    paths = await asyncio.to_thread(lambda: [worker.file for worker in asked if not worker.note and ask(worker.file)])
    texts, called, spied = await asyncio.gather(read_stacks(asked), read_collectives(paths), _spy(subjects, py_spy()))
    cycles = await asyncio.to_thread(lambda: [_cycle(subject.look()) for subject in subjects])
    found = []
    for subject, worker, cycle in zip(subjects, asked, cycles, strict=True):
        frames, note = _frames_and_note(worker, texts.get(worker.local_rank, ""))
        seen = subject.look()
        more = spied.get(seen.pid, Spied())
        if more.frames and not frames:
            frames, note = more.frames, ""
        told = called.get(worker.file, Collectives())
        groups = () if waits_elsewhere(seen.collective) else told.groups
        collective = told.last or seen.collective
        seen = dataclasses.replace(seen, frames=frames, note=note, native=more.native)
        found.append(dataclasses.replace(seen, collective=collective, groups=groups, cycle=cycle))
    path = await asyncio.to_thread(_write_all, file, subjects, found, texts, spied)
    return Evidence(round=round_, number=number, path=path, ranks=tuple(found))


def _cycle(seen: RankSeen) -> str:
    return find_cycle(seen.pid) if seen.pid > 0 and seen.state and seen.state not in _STOPPED else ""


def _ask(subject: Subject) -> Asked:
    # A process that is stopped would answer when it goes on, which nobody waits for.
    if subject.look().state in _STOPPED:
        return _not(subject.asked, "the process is stopped and cannot answer")
    return ask_for_stacks(subject.asked)


async def _spy(subjects: Sequence[Subject], program: str | None) -> dict[int, Spied]:
    """Look into those that live with py-spy, where there is one."""
    if program is None:
        return {}
    states = {seen.pid: seen.state for seen in (subject.look() for subject in subjects) if seen.pid and seen.state}
    return await spy(program, states, STACKS_WITHIN)


def _group_line(group: GroupSeen) -> str:
    last = group.first + group.step * (group.size - 1)
    members = f"{group.first} to {last}" + (f" by {group.step}" if group.step > 1 else "")
    pending = ", ".join(f"{call.operation} #{call.number}" if call.number else call.operation for call in group.pending)
    return f"  group {group.name} of ranks {members}: {group.called} collectives called, pending: {pending or '-'}"


def _write_all(
    path: Path,
    subjects: Sequence[Subject],
    found: Sequence[RankSeen],
    texts: Mapping[int, str],
    spied: Mapping[int, Spied],
) -> str:
    """Write everything for whoever looks at the node; return the path, "" where it cannot be written."""
    lines = []
    for subject, seen in zip(subjects, found, strict=True):
        why = f"; no stacks: {seen.note}" if seen.note else ""
        lines.append(
            f"rank {subject.rank}, pid {seen.pid}: state {seen.state or '-'}, {seen.cpu:g} cores, silent for "
            f"{seen.quiet:g} s, step {seen.step}, {seen.liveness} heartbeats, phase {seen.phase or '-'}, last "
            f"collective {seen.collective or '-'}, GPU {seen.gpu:.0%} busy, device errors: "
            f"{seen.device or 'none'}{why}"
        )
        lines += [f"  lock cycle: {seen.cycle}"] if seen.cycle else []
        lines += map(_group_line, seen.groups)
        lines.append(texts.get(seen.local_rank, "").rstrip() + "\n")
        if seen.pid in spied:
            lines.append(spied[seen.pid].text + "\n")
    with contextlib.suppress(OSError):
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)
    return ""
