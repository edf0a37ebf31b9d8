"""Real jobs on the local backend, driven as a person does: by the command line, with a detached supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.status import JobState, JobStatus
from tests.waiting import PATIENCE, eventually

__all__ = ["COUNT", "Job", "Process", "cli", "processes", "supervising", "without_children"]

COUNT = Path(__file__).parent / "scripts" / "count.py"


def cli(*args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the `rallypoint` command and return what it said."""
    command = [sys.executable, "-m", "rallypoint.cli.main", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


@dataclass
class Job:
    """A job of tests/live/scripts/count.py under a home of its own."""

    folder: Path
    home: Path
    name: str = "counter"
    deleted: bool = False

    @classmethod
    def write(cls, folder: Path, home: Path, *args: object, endless: bool = False, **fields: Any) -> Job:
        """Write the job's file; `fields` are the job's own. An `endless` one counts on until it `may_end`."""
        document = {
            "name": "counter",
            "entrypoint": str(COUNT),
            "args": list(args),
            "checkpoint_dir": str(folder / "checkpoints"),
            "recovery": {"stop_grace_period": "2s"},
            "rendezvous": {"last_call_timeout": "10m"},  # the second node may be as slow as it likes; a shrink has none
            "env": {"COUNT_UNTIL": str(folder / "enough")} if endless else {},
            "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": "1s"},
            "health": {"report_interval": "100ms"},
        }
        for key, value in fields.items():
            known = document.get(key)
            document[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
        (folder / "job.json").write_text(json.dumps(document))
        return cls(folder=folder, home=home)

    @property
    def place(self) -> Path:
        """The job's own folder."""
        return self.home / "jobs" / self.name

    def may_end(self) -> None:
        """Let an endless job come to its end: after its steps, or now if it is beyond them."""
        (self.folder / "enough").touch()

    def submit(self) -> Job:
        """Submit with a detached supervisor."""
        cli("submit", self.folder / "job.json")
        return self

    @property
    def record(self) -> JobRecord:
        """The record as it is on disk."""
        return JobRecord.from_json((self.place / "record.json").read_bytes())

    @property
    def status(self) -> JobStatus | None:
        """The coordinator's last word."""
        path = self.place / "status.json"
        return codec.loads(JobStatus, path.read_bytes()) if path.exists() else None

    def trains(self, *, ranks: int, beyond: int = 0, round_: int = 1, timeout: float = 60.0) -> JobStatus:
        """Wait until a round from `round_` on runs with `ranks` ranks, each reporting a step past `beyond`."""

        def training() -> JobStatus | None:
            status = self.status
            if status is None or status.state is not JobState.RUNNING or status.fence.round < round_:
                return None
            steps = [r.step for r in status.ranks if r.step is not None and r.step > beyond]
            return status if status.world_size == ranks and len(steps) == ranks else None

        return eventually(training, timeout=timeout, why=lambda: f"{ranks} ranks should train in round {round_}: {self.tell()}")

    def ends(self, timeout: float = 60.0) -> JobRecord:
        """Wait until the job is over and holds nothing any more."""

        def released() -> JobRecord | None:
            record = self.record
            return record if record.released else None

        return eventually(released, timeout=timeout, why=self.tell)

    def discard(self) -> None:
        """Delete the job, unless it has ended or was deleted: then it holds nothing."""
        if self.place.exists() and not self.record.released:
            cli("delete", self.name, check=False)

    def tell(self) -> str:
        """Return the job's story, for a test that fails."""
        log, record = self.place / "supervisor.log", self.place / "record.json"
        told = [log.read_text()[-2000:] if log.exists() else "no supervisor.log"]
        incidents = json.loads(record.read_text())["incidents"] if record.exists() else ()
        told += [f"{each['id']}: {each['rung']}: {each['reason']}" for each in incidents]
        return "\n" + "\n".join(told)

    def supervisor(self) -> int:
        """Return the process id of the detached supervisor."""
        return eventually(lambda: next((p.pid for p in self.processes("supervise")), None), why=self.tell)

    def processes(self, *words: str) -> list[Process]:
        """Return the job's processes whose command line has all `words`."""
        return [p for p in processes(str(self.home)) if all(word in p.command for word in words)]

    def agents(self, kind: str) -> list[Process]:
        """Return the `node` agents or the `coordinator`, without the shims around them."""
        return [p for p in self.processes("rallypoint.agent", f" {kind} ") if "shim" not in p.command]


@contextlib.contextmanager
def supervising(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """Have `rallypoint supervise` at work."""
    command = [sys.executable, "-m", "rallypoint.cli.main", "supervise", job.name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Process:
    """A live process."""

    pid: int
    command: str
    mark: str

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


def processes(home: str) -> list[Process]:
    """Return every live process that carries `home` in its environment, but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue
        if f"RALLYPOINT_HOME={home}" in environment and command:
            mark = next((v.partition("=")[2] for v in environment if v.startswith("RALLYPOINT_JOB_MARK=")), "")
            found.append(Process(int(entry.name), command, mark))
    return found


def without_children(pids: Collection[int]) -> set[int]:
    """Leave out processes whose parent is there, too: a child has its parent's command line until it executes its own."""
    parents = {pid: _parent(pid) for pid in pids}
    return {pid for pid, parent in parents.items() if parent is not None and parent not in parents}


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None
