"""Real agents and coordinators of one job in one folder, without a supervisor."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rallypoint.wire import codec
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus
from tests.live.light import without_torch
from tests.waiting import PATIENCE, eventually

__all__ = ["GROUP", "OBEY", "Agents", "agents", "alive", "free_port"]

SCRIPTS = Path(__file__).parent / "agent_scripts"
OBEY, GROUP = SCRIPTS / "obey.py", SCRIPTS / "group.py"
ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Agents:
    """One job and its processes; what still runs at the end of the test is killed."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    tls: Path | None = None  #: folder with the certificates of all of them
    draining: list[threading.Thread] = field(default_factory=list)
    path: str = str(ROOT)  #: the PYTHONPATH of all of them
    descriptors: tuple[int, int] | None = None  #: the soft and the hard limit on open files with which they start

    @property
    def work(self) -> Path:
        """The folder that the workers obey."""
        return self.folder / "work"

    def spawn(self, *args: object) -> subprocess.Popen[str]:
        """Start `rallypoint-agent ARGS`; its output is one pipe."""
        return self._start(["-m", "rallypoint.agent", *map(str, args)], self.path)

    def python(self, *args: object) -> subprocess.Popen[str]:
        """Start `python ARGS`, which may import torch; its output is one pipe."""
        return self._start([str(arg) for arg in args], str(ROOT))

    def _start(self, args: list[str], path: str) -> subprocess.Popen[str]:
        command = [sys.executable, *args]
        env = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(
            command,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=None if self.descriptors is None else self._limit,  # noqa: PLW1509
        )
        self.started.append(process)
        return process

    def _limit(self) -> None:
        if self.descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.descriptors)

    def drain(self) -> None:
        """Write what the processes say to `FOLDER/said-N.txt` from now on, so that nothing of it is missing."""
        for number, process in enumerate(self.started):
            stream, process.stdout = process.stdout, None
            if stream is not None:
                path = self.folder / f"said-{number}.txt"
                thread = threading.Thread(target=_copy, args=(stream, path), daemon=True)
                self.draining.append(thread)
                thread.start()

    def drained(self) -> int:
        """Wait until all processes that are drained have ended; return how many bytes they said."""
        for thread in self.draining:
            thread.join(60 * PATIENCE)
        return sum(path.stat().st_size for path in self.folder.glob("said-*.txt"))

    def run(self, *args: object) -> subprocess.Popen[str]:
        """Start `rallypoint-agent run ARGS`."""
        return self.spawn("run", *args)

    def write_plan(self, *args: object, **fields: object) -> None:
        """Write the plan of a job whose workers run obey.py."""
        known: dict[str, object] = {
            "name": "job",
            "role": "trainer",
            "min_nodes": 1,
            "max_nodes": 1,
            "nproc_per_node": 2,
            "entry": Entry.SCRIPT,
            "entrypoint": str(OBEY),
            "args": (str(self.work), *map(str, args)),
            "last_call": 600.0,
            "node_lease": 60.0,
            "report_interval": 0.1,
            "stop_grace": 1.0,
        }
        plan = build(Plan, **{**known, **fields})
        (self.folder / "plan.json").write_text(codec.dumps(plan))
        (self.folder / "secret").write_text("a secret\n")

    def coordinator(self, term: int = 1, *flags: object) -> subprocess.Popen[str]:
        """Start a coordinator of attempt 1."""
        files = ["--endpoint-file", self.folder / "endpoint.json", "--status-file", self.folder / "status.json"]
        return self.spawn("coordinator", *self._common(), "--uid", "u1", "--term", term, *files, *flags)

    def node(self, node: int = 0, incarnation: int = 0, endpoint: str = "endpoint.json") -> subprocess.Popen[str]:
        """Start a node agent of attempt 1, which finds its coordinator in the file `endpoint`."""
        place = ["--node", node, "--incarnation", incarnation, "--dir", self.folder / f"node-{node}.{incarnation}"]
        return self.spawn("node", *self._common(), *place, "--endpoint-file", self.folder / endpoint)

    def _common(self) -> list[object]:
        tls = () if self.tls is None else ("--tls", self.tls)
        return ["--plan", self.folder / "plan.json", "--attempt", 1, "--secret-file", self.folder / "secret", *tls]

    def status(self) -> JobStatus | None:
        """Return what the coordinator published last."""
        path = self.folder / "status.json"
        return codec.loads(JobStatus, path.read_text()) if path.exists() else None

    def running(self, round_: int, ranks: int) -> dict[int, int]:
        """Wait until all workers of a round have started, and return their process numbers by rank."""

        def pids() -> dict[int, int] | None:
            found = {int(p.name.split(".")[1]): int(p.read_text()) for p in (self.work / "started").glob(f"{round_}.*")}
            return found if len(found) == ranks else None

        return eventually(pids, why=f"{ranks} workers of round {round_}")

    def published(self, state: JobState, round_: int) -> JobStatus:
        """Wait until a status of this state and round is published."""

        def read() -> JobStatus | None:
            status = self.status()
            return status if status is not None and (status.state, status.fence.round) == (state, round_) else None

        return eventually(read, why=f"{state.value} in round {round_}")

    def finish(self) -> None:
        """Let all workers end with 0."""
        (self.work / "finish").touch()


def _copy(stream: IO[str], path: Path) -> None:
    with stream, path.open("w", encoding="utf-8") as file:
        shutil.copyfileobj(stream, file)


@contextmanager
def agents(folder: Path, *, torch: bool = False) -> Iterator[Agents]:
    """Yield a folder for one job. Without `torch` there is none to import, so that a start costs a tenth."""
    job = Agents(folder=folder, path=str(ROOT) if torch else without_torch(folder))
    job.work.mkdir()
    try:
        yield job
    finally:
        for process in job.started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60 * PATIENCE)


def said(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str]:
    """Wait for the end of an agent; return its exit code and all it wrote."""
    output, _ = process.communicate(timeout=timeout * PATIENCE)
    return process.returncode, output
