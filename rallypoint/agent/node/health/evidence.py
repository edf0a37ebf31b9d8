"""What can be found of workers that hang: each one's stacks, how the kernel sees it, how far it came.

A worker's Python is asked for its stacks by a signal. To a process that does not catch it that signal is the end, so it is sent
only to the process that says of itself that it does (wire/progress.py), and only while the kernel agrees: the signal is among
those that it catches, and the file that faulthandler writes to is still the one that we read. Between the look and the signal
its number cannot become that of another process: a pidfd stands for it.

py-spy, if it is installed, reads a process from outside, so it sees native frames (which lock, which system call), also of a
stopped process. It stops the process for a moment; if the process is stopped or waits for a disk, it reads only the memory and
finds no native frames. If py-spy is missing, may not trace or takes too long, only its frames are missing.

Threads that wait in a circle for native mutexes of each other are found too. The kernel shows at which address a thread waits
(`/proc/PID/task/TID/syscall`), and glibc's mutex has its owner beside the word at that address. Both need the right to trace
the process, which an ancestor has as a rule; without it no cycle is found. A lock of Python (`threading.Lock`) has no owner,
since any thread may release it, and is never part of a cycle.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.node.health.collectives import Collectives, ask, read_collectives, waits_elsewhere
from rallypoint.wire.hang import FRAMES, STACK_SIGNAL, Evidence, GroupSeen, RankSeen

__all__ = [
    "STACKS_WITHIN",
    "Asked",
    "Subject",
    "ask_for_stacks",
    "complete",
    "few_frames",
    "find_cycle",
    "lock_owners",
    "main_frames",
    "read_spied",
    "read_stacks",
    "spy",
    "take",
]

#: Seconds that the workers have to write their stacks; it is the work of a signal's handler.
STACKS_WITHIN = 3.0

_LOOK_EVERY = 0.02

#: The kernel's letters for that.
_STOPPED = frozenset("Tt")

#: Bytes that are read of one worker's stacks.
_MOST = 256 * 1024

#: Number of the system call `futex`, by machine.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())

#: A mutex that is taken waits with this operation (private or shared), for its word not to be this value any more.
_WAIT, _PRIVATE, _CONTENDED = 0, 128, 2

#: The word, how often it was taken, and the thread that owns it.
_MUTEX = struct.Struct("<iIi")

#: Native frames reported for a rank, the innermost first.
_NATIVE = 4

#: The kernel's letters of processes that a tracer would wait for.
_FROZEN = frozenset("TtD")

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-fA-F]+.*:$", re.MULTILINE)

_FRAME = re.compile(r'^  File "(?P<path>.*)", line (?P<line>\d+|\?\?\?)(?: in (?P<name>.*))?$', re.MULTILINE)

#: Prefixes of the path of a frame: the folder of installed packages, and that of the standard library, which is shown as such.
_PACKAGES, _LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages)/"), re.compile(r"^.*/lib/python3\.\d+/")

#: Frames that are left out: those of our start-up module, of the process that forked the worker, and of `python -m`; and the
#: code that calls the latter, where a module of ours was started by `run_module`.
_OURS = re.compile(r"/rallypoint/(training/startup|agent/workers)/|^<frozen runpy>")
_STARTED, _STARTS = re.compile(r"^<frozen runpy>|/runpy\.py$"), "<string>"

#: Characters of one frame; longer paths are cut.
_FRAME_CHARS = 120


@dataclass(frozen=True, kw_only=True)
class _Spied:
    """A main thread: its Python `frames`, the `native` ones below the innermost of them; `text` has all threads."""

    frames: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    text: str = ""


def _find_py_spy() -> str | None:
    """Return the path of py-spy: on PATH, or beside this Python; None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy") or shutil.which("py-spy", path=beside)


async def spy(program: str, processes: Mapping[int, str], within: float) -> dict[int, _Spied]:
    """Dump the stacks of processes (by pid, with their state letter) together; leave out those that take too long."""
    seen = await asyncio.gather(*(_spy_on(program, pid, state, within) for pid, state in processes.items()))
    return {pid: found for pid, found in zip(processes, seen, strict=True) if found is not None}


async def _spy_on(program: str, pid: int, state: str, within: float) -> _Spied | None:
    how = "--nonblocking" if state in _FROZEN else "--native"
    command = (program, "dump", "--json", "--full-filenames", how, "--pid", str(pid))
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        # In a thread: the agent reaps every child of its process, about which asyncio's own subprocesses write a warning.
        ran = await asyncio.to_thread(
            subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within, check=False
        )
        return read_spied(json.loads(ran.stdout), pid)
    return None


def read_spied(threads: Any, pid: int) -> _Spied | None:
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
    return _Spied(frames=few_frames(python), native=tuple((named or below)[:_NATIVE]), text="\n".join(map(_thread, known)))


def _frame(frame: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the text of a frame, and whether the frame is native."""
    path, name, line = str(frame.get("filename", "")), str(frame.get("name", "")), frame.get("line", 0)
    if path.endswith(".py") or path.startswith("<"):
        return f"{_short(path)}:{line} {name.rpartition('.')[2]}", False
    return f"{name} in {path.rpartition('/')[2]}", True


def _thread(thread: Mapping[str, Any]) -> str:
    lines = (f"  {_frame(frame)[0]}" for frame in thread["frames"])
    return "\n".join((f"Thread {thread.get('os_thread_id')} {thread.get('thread_name') or ''} (py-spy):", *lines))


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
    number: int, subjects: Sequence[Subject], *, round_: int, file: Path, py_spy: Callable[[], str | None] = _find_py_spy
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
        more = spied.get(seen.pid, _Spied())
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


async def _spy(subjects: Sequence[Subject], program: str | None) -> dict[int, _Spied]:
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
    spied: Mapping[int, _Spied],
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


def lock_owners(pid: int) -> dict[int, int]:
    """Return the owner of the mutex that each thread of a process waits for; threads that wait for none are left out."""
    try:
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return {}
    try:
        found = {thread: _owner(pid, thread, memory) for thread in threads}
    finally:
        os.close(memory)
    return {thread: owner for thread, owner in found.items() if owner in threads}


def _owner(pid: int, thread: int, memory: int) -> int:
    """Return the thread that owns the mutex for which a thread waits, 0 where it waits for none."""
    try:
        call = Path(f"/proc/{pid}/task/{thread}/syscall").read_text(encoding="ascii").split()
        if len(call) < 4 or call[0] != _FUTEX:
            return 0
        address, operation, value = (int(word, 16) for word in call[1:4])
        if operation & ~_PRIVATE != _WAIT or value != _CONTENDED:
            return 0
        word, _count, owner = _MUTEX.unpack(os.pread(memory, _MUTEX.size, address))
    except (OSError, ValueError, OverflowError, struct.error):
        return 0
    return owner if word == _CONTENDED else 0


def find_cycle(pid: int, owners: Callable[[int], Mapping[int, int]] = lock_owners) -> str:
    """Return the circle in which the main thread of a process waits, as a sentence; "" where it waits in none."""
    waits_for = owners(pid)
    path = [pid]
    while path[-1] in waits_for:
        following = waits_for[path[-1]]
        if following in path:
            return ", which waits for a lock held by ".join(f"thread {thread}" for thread in (*path, following))
        path.append(following)
    return ""


def complete(text: str) -> bool:
    """Return whether all threads are there: the one that was interrupted is the main one, which stands last."""
    current = [match.end() for match in _THREAD.finditer(text) if match[1].startswith("Current")]
    return bool(current) and _FRAME.search(text, current[-1]) is not None and text.endswith("\n")


def main_frames(text: str, most: int = FRAMES) -> tuple[str, ...]:
    """Return at most `most` frames of the interrupted thread in the last dump of `text`, the innermost first.

    If there are more, the innermost and the outermost ones are returned: the current place, and where the call began.
    """
    threads = list(_THREAD.finditer(text))
    current = [match for match in threads if match[1].startswith("Current")]
    if not current:
        return ()
    begin = current[-1].end()
    end = next((match.start() for match in threads if match.start() > begin), len(text))
    return few_frames(tuple(_frames(text[begin:end])), most)


def _frames(block: str) -> Iterator[str]:
    called = ""
    for match in _FRAME.finditer(block):
        ours = _OURS.search(match["path"]) or (match["path"] == _STARTS and _STARTED.search(called))
        called = match["path"]
        if ours:
            continue
        name = f" {match['name']}" if match["name"] else ""
        yield f"{_short(match['path'])}:{match['line']}{name}"[:_FRAME_CHARS]


def _short(path: str) -> str:
    """Return a path of a package from that package on, one of the library behind `python/`, any other by its name alone."""
    inside = _PACKAGES.sub("", path)
    if inside == path:
        inside = _LIBRARY.sub("python/", path)
    return inside if inside != path else path.rpartition("/")[2]


def few_frames(frames: Sequence[str], most: int = FRAMES) -> tuple[str, ...]:
    """Return the innermost and the outermost frames, `most` of them at the most, with one in between for those left out."""
    if len(frames) <= most:
        return tuple(frames)
    first = most - most // 3
    last = most - first - 1
    return (*frames[:first], f"... {len(frames) - first - last} more ...", *frames[len(frames) - last :])
