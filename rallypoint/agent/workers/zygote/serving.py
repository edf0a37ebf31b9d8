"""The zygote at work: it imports, says whether it is fit, and forks on demand. Nothing of ours runs beside this loop.

A fork is made twice, and the one in between ends at once: the agent, which is our subreaper, becomes the parent of the
grandchild, and sees its end with its exit code, whatever has become of the zygote.

The memory of the zygote is put into huge pages. A worker shares some 200 MB with it. In pages of 4 KiB the kernel has 50,000 of
them to enter for each fork, and to let go of when it ends, before which its place is not free; in pages of 2 MiB it is a
hundred. A page that is written to is parted into small ones first, and only what is written to is copied: the rest stays
shared.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rallypoint.agent.linux import collapse
from rallypoint.agent.workers.zygote.becoming import prepare_forks
from rallypoint.agent.workers.zygote.messages import PACKET, Order, packet, unpacked
from rallypoint.agent.workers.zygote.preload import ALWAYS, Loaded, devices_counted_outside, installed, load, without
from rallypoint.agent.workers.zygote.waiting import wait

__all__ = ["HUGE", "into_huge_pages", "main", "spans", "unfit"]

#: Modules that could not be imported and are told by name, of those that a script had imported.
_TOLD = 20

_TASKS = Path("/proc/self/task")

#: The start-up module of workers.
_STARTUP = Path(__file__).parents[3] / "training" / "startup" / "sitecustomize.py"

#: Parts of torch that hold a device; a context does not survive a fork.
_DEVICES = ("cuda", "xpu", "mtia", "npu", "hpu")

#: Bytes of a huge page on x86-64, and on ARM with pages of 4 KiB; elsewhere the kernel refuses, and nothing is lost.
HUGE = 2 << 20

#: Seconds that may go into it: a machine whose memory is in pieces has to push together what a huge page needs.
_WITHIN = 2.0

#: What part of a huge page must be in use already, so that little is taken that was not.
_FULL = 0.75

#: Bytes of the entry of a page in /proc/PID/pagemap, and the bit of the last byte that is set if the page is in memory.
_ENTRY, _PRESENT = 8, 0x80


def main(argv: Sequence[str]) -> int | Order:
    """Serve until the agent is gone and return an exit code; in a fork return what it becomes."""
    agent, line = os.getppid(), socket.socket(fileno=int(argv[0]))
    started = time.monotonic()
    prepare_forks(str(_STARTUP))
    with devices_counted_outside():
        loaded = load(ALWAYS)
        if "torch" in loaded.failed:
            missing = "torch" not in sys.modules and "No module named 'torch'" in loaded.failed["torch"]
            return _refuse(line, "torch is not installed" if missing else f"torch: {loaded.failed['torch']}")
        more = _load_declared(argv[1], argv[2:])
    reason = unfit()
    if reason:
        return _refuse(line, reason)
    _settle()
    huge = into_huge_pages()
    seconds = round(time.monotonic() - started, 3)
    ready = {"modules": len(sys.modules), "seconds": seconds, "huge": huge}
    line.send(packet({"ready": {**ready, "failed": dict(more.failed), "asked": dict(more.asked)}}))
    return _serve(line, agent)


def _load_declared(place: str, names: Sequence[str]) -> Loaded:
    """Import what was asked for; modules beside the script are found as the script would find them."""
    place = os.path.realpath(place or ".")  # as Python itself does it for a script
    sys.path.insert(0, place)
    try:
        return load(names)
    finally:
        sys.path.remove(place)


def _refuse(line: socket.socket, reason: str) -> int:
    line.send(packet({"unfit": reason}))
    return 0


def _settle() -> None:
    """Leave what was loaded out of every later collection: looking at an object writes to its page, and unshares it."""
    gc.collect()
    gc.freeze()


def _serve(line: socket.socket, agent: int) -> int | Order:
    while True:
        data, fds, _, _ = socket.recv_fds(line, PACKET, 1)
        if not data:
            return 0
        message = unpacked(data)
        if "learn" in message:
            line.send(packet({"learned": _learn(Path(message["learn"]), message.get("without", ()))}))
            continue
        if "import" in message:
            line.send(packet({"learned": _import(installed(message["import"]), message.get("without", ()))}))
            continue
        theirs = socket.socket(fileno=fds[0])
        try:
            pid = _fork_twice()
        except OSError as error:
            line.send(packet({"barren": f"{error.strerror}"}))
            theirs.close()
            continue
        if pid == 0:
            line.close()
            return wait(theirs, agent)
        theirs.close()
        line.send(packet({"born": pid}))


def _learn(file: Path, refused: Sequence[str]) -> dict[str, Any]:
    try:
        names = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return {"count": 0, "failed": {str(file): str(error.strerror)}, "asked": {}, "unfit": ""}
    return _import(names, refused)


def _import(names: Sequence[str], refused: Sequence[str]) -> dict[str, Any]:
    with devices_counted_outside():
        loaded = load(without((name for name in names if name not in sys.modules), refused))
    _settle()
    return {"count": loaded.count, "failed": _few(loaded.failed), "asked": dict(loaded.asked), "unfit": unfit()}


def _few(failed: Mapping[str, str]) -> dict[str, str]:
    """Return what fits into a packet."""
    return dict(list(failed.items())[:_TOLD])


def _fork_twice() -> int:
    """Return the number of the grandchild, and 0 in it; raises `OSError` when there is no room for one."""
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if between == 0:
        pid = _fork_or_end()
        if pid == 0:
            os.close(read)
            os.close(write)
            return 0
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    told = os.read(read, 32)
    os.close(read)
    os.waitpid(between, 0)
    if not told:
        raise OSError(
            11, "cannot start a worker: the limit on processes is reached; raise it (ulimit -u, or the PID limit of the pod)"
        )
    return int(told)


def _fork_or_end() -> int:
    try:
        return os.fork()
    except OSError:
        os._exit(1)


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


def into_huge_pages(*, process: Path = Path("/proc/self"), take: Callable[[int, int], bool] = collapse) -> int:
    """Have this process's own memory in huge pages as far as the kernel has some; return how many bytes went there.

    It takes some 7 ms for each. `take(address, length)` says whether it worked.
    """
    until, taken = time.monotonic() + _WITHIN, 0
    try:
        lines = (process / "maps").read_text().splitlines()
        with (process / "pagemap").open("rb", buffering=0) as pages:
            for address in spans(lines):
                if time.monotonic() > until:
                    break
                if _share_in_use(pages.fileno(), address) >= _FULL:
                    taken += HUGE * take(address, HUGE)
    except OSError:  # this /proc lacks the file; the value stays as it was
        return taken
    return taken


def spans(maps: Iterable[str]) -> Iterator[int]:
    """Return where huge pages could begin: within what is private, may be written to, and comes from no file."""
    for line in maps:
        span, access, _, _, inode, *name = line.split(maxsplit=5)
        if not access.startswith("rw-p") or inode != "0" or (name and name[0].startswith(("[stack", "[v"))):
            continue
        begin, end = (int(part, 16) for part in span.split("-"))
        yield from range(-(-begin // HUGE) * HUGE, end // HUGE * HUGE, HUGE)


def _share_in_use(pagemap: int, address: int) -> float:
    page = os.sysconf("SC_PAGE_SIZE")
    entries = os.pread(pagemap, HUGE // page * _ENTRY, address // page * _ENTRY)
    return sum(entry & _PRESENT > 0 for entry in entries[_ENTRY - 1 :: _ENTRY]) / (HUGE // page)
