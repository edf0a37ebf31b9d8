"""The zygote at work: it imports, says whether it is fit, and forks on demand. Nothing of ours runs beside this loop.

A fork is made twice, and the one in between ends at once: the agent, which is our subreaper, becomes the parent of the
grandchild, and sees its end with its exit code, whatever has become of the zygote.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.zygote.fitness import unfit
from rallypoint.agent.workers.zygote.messages import PACKET, Order, packet, unpacked
from rallypoint.agent.workers.zygote.pages import into_huge_pages
from rallypoint.agent.workers.zygote.preload import ALWAYS, Loaded, devices_counted_outside, installed, load, without
from rallypoint.agent.workers.zygote.waiting import wait

__all__ = ["main"]

#: Modules that could not be imported and are told by name, of those that a script had imported.
_TOLD = 20


def main(argv: Sequence[str]) -> int | Order:
    """Serve until the agent is gone and return an exit code; in a fork return what it becomes."""
    agent, line = os.getppid(), socket.socket(fileno=int(argv[0]))
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # `-m` puts the current folder there, and a worker has another in its place
    started = time.monotonic()
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
