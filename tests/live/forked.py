"""A zygote with the real torch, asked for forks as an agent asks for them; this process is their parent for as long."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.linux import become_subreaper
from rallypoint.agent.workers.zygote.messages import PACKET, Order, frame, packet, receive, unpacked
from tests.waiting import PATIENCE

__all__ = ["ENV", "ROOT", "STARTUP", "Ran", "Zygote", "light_torch", "no_subreaper", "spawned", "zygote"]

ROOT = Path(__file__).parents[2]
#: What a zygote and the programs beside it are started with.
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
STARTUP = ROOT / "rallypoint" / "training" / "startup" / "sitecustomize.py"

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program: its exit code (minus its signal), and what it wrote."""

    code: int
    out: str
    err: str


@dataclass
class Zygote:
    """A zygote that is ready, and what it said of itself."""

    line: socket.socket
    process: subprocess.Popen[bytes]
    ready: Mapping[str, Any]

    def ask(self, message: Mapping[str, Any], *fds: int) -> dict[str, Any]:
        """Say something and return the answer."""
        socket.send_fds(self.line, [packet(message)], fds)
        return unpacked(self.line.recv(PACKET))

    def standby(self, **start: object) -> tuple[int, socket.socket, dict[str, Any]]:
        """Return a fork that is ready: its number, its line, what it said."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            born = self.ask({"fork": True}, theirs.fileno())
        ours.settimeout(30 * PATIENCE)
        ours.sendall(frame({"warm": False, "startup": "", **start}))
        ready, _ = receive(ours)
        assert ready is not None
        return born["born"], ours, ready

    def run(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        startup: str = "",
        warm: bool = False,
    ) -> Ran:
        """Let a fork become `python -u ARGS` and wait for its end."""
        pid, line, _ = self.standby(warm=warm, startup=startup)
        order = Order(
            argv=(sys.executable, "-u", *args),
            env=dict(ENV if env is None else env),
            cwd="" if cwd is None else str(cwd),
            startup=startup,
            streams=(1, 2),
        )
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, line:
            socket.send_fds(line, [frame(order.to_json())], [out.fileno(), err.fileno()])
            answer, _ = receive(line)
            assert answer == {"taken": True}, answer
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            out.seek(0)
            err.seek(0)
            return Ran(code=code, out=out.read().decode(), err=err.read().decode())


def spawned(*args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run `python -u ARGS` as a program."""
    done = subprocess.run(
        [sys.executable, "-u", *args],
        env=dict(ENV if env is None else env),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr)


def light_torch(folder: Path, init: str = "") -> dict[str, str]:
    """Make a torch with nothing in it but `init`, and return an environment in which it is found."""
    for name in ("_dynamo", "distributed", "optim", "profiler", "nn/parallel", "utils/data"):
        path = folder / "torch" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        (path.parent / "__init__.py").touch()
    (folder / "torch" / "__init__.py").write_text(init)
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


@contextmanager
def zygote(*preload: str, place: str = "", env: Mapping[str, str] | None = None) -> Iterator[Zygote]:
    """Yield a zygote that is ready (or, as `ready` says, unfit)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {**ENV, "PYTHONPATH": str(ROOT), **(env or {})}
    command = [sys.executable, "-u", "-m", "rallypoint.agent.workers.zygote", str(theirs.fileno()), place, *preload]
    become_subreaper()
    process = subprocess.Popen(
        command, env=variables, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
    )
    theirs.close()
    ours.settimeout(60 * PATIENCE)
    try:
        yield Zygote(line=ours, process=process, ready=unpacked(ours.recv(PACKET)))
    finally:
        ours.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        _reap_all(_sequence())
        no_subreaper()


def no_subreaper() -> None:
    """Undo `become_subreaper`: orphans of other tests are none of ours."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)


def _sequence() -> Sequence[int]:
    """Return our children whom nobody waits for: forks that were never told anything end with their line."""
    return [int(pid) for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]


def _reap_all(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            if "rallypoint.agent.workers.zygote" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        except (FileNotFoundError, ChildProcessError, ProcessLookupError):
            continue
