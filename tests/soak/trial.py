"""The jobs of the chaos soak: what each trains, who belongs to it, how it must end, and what it was seen to do."""

from __future__ import annotations

import abc
import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.detach import spawn_supervisor
from rallypoint.backends.requests import delete
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.codec import WireError
from tests.live.jobs import Process, processes
from tests.soak.field import Budgets, expected_phase, submitted
from tests.soak.ledger import Line, read, wrongs
from tests.waiting import eventually

__all__ = ["FINAL_CODE", "KINDS", "Job", "Kind", "Program", "Sight", "Trial", "signalled"]

HERE = Path(__file__).parent
LEARNER, CALLING = HERE / "learner.py", HERE / "calling.py"

#: The exit code that ends a job which calls it terminal.
FINAL_CODE = 66


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of job: its script, its nodes and workers; `memory`: a snapshot is kept of each step."""

    name: str
    script: str
    nodes: str = "1"
    workers: int = 1
    memory: bool = False


KINDS = (
    Kind(name="living, 2 nodes", script="living", nodes="2"),
    Kind(name="living, 1 to 2 nodes", script="living", nodes="1:2"),
    Kind(name="living, 2 workers", script="living", workers=2),
    Kind(name="plain, 2 nodes", script="plain", nodes="2"),
    Kind(name="plain with snapshots, 2 workers", script="plain", workers=2, memory=True),
    Kind(name="launch_agent, 2 workers", script="called", workers=2),
)


@dataclass(frozen=True)
class Sight:
    """Where a job stands: its newest round that made a step, who does, and how many lines were written."""

    round: tuple[int, int]
    pids: frozenset[int]
    lines: int

    @classmethod
    def of(cls, lines: list[Line]) -> Sight:
        steps = [line for line in lines if line.what == "step"]
        newest = max((line.round for line in steps), default=(0, 0))
        return cls(newest, frozenset(line.pid for line in steps if line.round == newest), len(lines))


class Trial(abc.ABC):
    """One run of one kind: it is begun, struck, and judged when it is over."""

    def __init__(self, name: str, kind: Kind, folder: Path, home: Path, disk: Path, steps: int) -> None:
        self.name, self.kind, self.home, self.steps = name, kind, home, steps
        self.folder, self.checkpoints = folder / name, disk / name
        (self.folder / "orders").mkdir(parents=True)
        (self.folder / "slowly").touch()
        self.final = False

    @abc.abstractmethod
    def begin(self) -> None:
        """Start it."""

    @abc.abstractmethod
    def look_after(self) -> bool:
        """Give it what it needs to go on; return whether it is over."""

    @abc.abstractmethod
    def victims(self, part: str) -> list[Process]:
        """Return the processes of a part: `agent`, `shim`, `coordinator`, `supervisor`."""

    @abc.abstractmethod
    def ended_wrong(self) -> list[str]:
        """Return what is wrong with how it ended."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Take away what is left of it."""

    @property
    def lines(self) -> list[Line]:
        """What its workers wrote down so far."""
        return read(self.folder / "ledger")

    def workers(self) -> dict[int, int]:
        """Return the process of each rank that made a step, or resumed, in the newest round."""
        lines = [line for line in self.lines if line.what in ("resumed", "step")]
        newest = max((line.round for line in lines), default=(0, 0))
        return {line.rank: line.pid for line in lines if line.round == newest}

    def hasten(self) -> None:
        """Let it come to its end: nobody strikes it any more."""
        (self.folder / "slowly").unlink(missing_ok=True)

    def order(self, rank: int, words: str) -> None:
        """Ask something of a rank, in its next step; returns when it begins to do it, or nobody will any more."""
        partial, order = self.folder / "orders" / f".{rank}", self.folder / "orders" / str(rank)
        partial.write_text(words)
        partial.replace(order)
        eventually(lambda: not order.exists() or self.look_after(), every=0.005, why=f"{self.name}: rank {rank}: {words}")

    def note(self, what: str, step: int, at: float) -> None:
        """Write a line into the ledger."""
        line = {"at": at, "what": what, "step": step, "fence": [0, 0, 0]}
        with (self.folder / "ledger").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def judge(self, course: tuple[str, ...]) -> list[str]:
        """Return what is wrong, now that it is over."""
        lines = self.lines
        found = [*wrongs(lines, course), *self.ended_wrong()]
        return [f"{self.name} ({self.kind.name}): {what}" for what in found]

    def done_by_all(self) -> list[str]:
        """Return what is wrong with the end of a run that succeeded."""
        done = [line for line in self.lines if line.what == "done"]
        newest = max((line.round for line in done), default=(0, 0))
        last = [line for line in done if line.round == newest]
        if not last:
            return ["it succeeded, and nobody is done"]
        missing = set(range(last[0].world)) - {line.rank for line in last}
        return [f"it succeeded, but ranks {sorted(missing)} of {last[0].world} are not done"] if missing else []


class Job(Trial):
    """A supervised job on the local backend."""

    def __init__(
        self, name: str, kind: Kind, folder: Path, home: Path, disk: Path, steps: int, budgets: Budgets, *, silence: str
    ) -> None:
        super().__init__(name, kind, folder, home, disk, steps)
        self.budgets, self.silence = budgets, silence
        self.uid = ""

    def begin(self) -> None:
        document = {
            "name": self.name,
            "entrypoint": str(LEARNER),
            "args": [str(self.folder), str(self.steps), self.kind.script],
            "nodes": self.kind.nodes,
            "nproc_per_node": self.kind.workers,
            "checkpoint_dir": str(self.checkpoints),
            "env": {"PYTHONPATH": str(HERE.parents[1])},
            "recovery": {
                "max_restarts": self.budgets.max_restarts,
                "node_replacements": self.budgets.node_replacements,
                "max_hangs": 1000,
                "stop_grace_period": "2s",
                "save_at_breakpoint": self.kind.memory,
            },
            "rendezvous": {"last_call_timeout": "2s"},
            "fault_tolerance": {
                "retry_limit": self.budgets.retry_limit,
                "retry_pause_period": 0,
                "failure_grace_period": "1s",
                "no_progress_limit": 0,
                "terminal_exit_codes": [FINAL_CODE],
            },
            "health": {"report_interval": "200ms", "hang_detection": 2, "hang_downtime": self.silence},
        }
        self.uid = submitted(document, home=self.home, base=self.folder, owner="chaos")
        spawn_supervisor(self.home, self.name)

    def look_after(self) -> bool:
        record = self.record
        if record is not None and record.released:
            return True
        if not self.victims("supervisor"):
            spawn_supervisor(self.home, self.name)
        return False

    @property
    def record(self) -> JobRecord | None:
        """The record as it is on disk; None while a full one has no room for it to be read whole."""
        try:
            return JobRecord.from_json((self.home / "jobs" / self.name / "record.json").read_bytes())
        except (OSError, WireError):
            return None

    def victims(self, part: str) -> list[Process]:
        everyone = processes(str(self.home))
        if part == "supervisor":
            return [p for p in everyone if f" supervise {self.name} " in f"{p.command} "]
        ours = [p for p in everyone if p.mark.startswith(f"{self.uid}/") and "rallypoint" in p.command]
        return [p for p in ours if _part(p.command) == part]

    def ended_wrong(self) -> list[str]:
        record = self.record
        if record is None:
            return ["its record cannot be read"]
        expected = Phase.FAILED if self.final else expected_phase(record, self.budgets, least=int(self.kind.nodes[0]))
        found = []
        if record.phase is not expected:
            told = "" if record.verdict is None else f" ({record.verdict.reason}: {record.verdict.message})"
            found.append(f"it is {record.phase.value}{told}, and by what happened it should be {expected.value}")
        elif self.final and (record.verdict is None or str(FINAL_CODE) not in record.verdict.message):
            found.append(f"exit code {FINAL_CODE} ended it, and the verdict is {record.verdict}")
        return [*found, *(self.done_by_all() if record.phase is Phase.SUCCEEDED else [])]

    def remove(self) -> None:
        async def go() -> None:
            backend = LocalBackend(self.home)
            try:
                await delete(backend, self.name, holder="chaos", timeout=600.0)
            finally:
                await backend.close()

        asyncio.run(go())


def _part(command: str) -> str:
    words = command.split()
    if "rallypoint.backends.local.shim" in command:
        return "shim"
    if "rallypoint.agent" not in words:
        return "other"
    if "coordinator" in words:
        return "coordinator"
    return "agent" if "node" in words else "other"


class Program(Trial):
    """A program that calls `launch_agent`; where its agent is gone it ends with an error, and is started again."""

    def __init__(self, name: str, kind: Kind, folder: Path, home: Path, disk: Path, steps: int) -> None:
        super().__init__(name, kind, folder, home, disk, steps)
        self.runs = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.agent_struck = False
        self.faults: list[str] = []

    def begin(self) -> None:
        self.runs += 1
        self.agent_struck = False
        environment = {
            **os.environ,
            "RALLYPOINT_HOME": str(self.home),
            "RALLYPOINT_CHECKPOINT_DIR": str(self.checkpoints),
            "PYTHONPATH": str(HERE.parents[1]),
            "CHAOS_RUN": str(self.runs),
        }
        command = [sys.executable, str(CALLING), str(self.folder), str(self.steps)]
        with (self.folder / f"output.{self.runs}").open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)

    def look_after(self) -> bool:
        assert self.process is not None
        if self.process.poll() is None:
            return False
        if self.process.returncode == 0:
            return True
        if not self.agent_struck:
            output = (self.folder / f"output.{self.runs}").read_text(errors="replace")
            told = f"run {self.runs} ended with {self.process.returncode}, and its agent was not struck"
            self.faults.append(f"{told}: {output[-1500:]}")
            return True
        self.begin()
        return False

    def victims(self, part: str) -> list[Process]:
        if part != "agent" or self.process is None or self.process.poll() is not None:
            return []
        found = [p for p in processes(str(self.home)) if _is_called_agent(p, self.process.pid)]
        self.agent_struck = self.agent_struck or bool(found)
        return found

    def ended_wrong(self) -> list[str]:
        if self.faults:
            return self.faults
        told = json.loads((self.folder / "returned").read_text())
        done = {str(line.rank): line.digest for line in self.lines if line.what == "done" and line.fence[0] == self.runs}
        return [] if told == done else [f"it returned {told}, and its ranks are done with {done}"]

    def remove(self) -> None:
        assert self.process is not None
        self.process.wait()


def _is_called_agent(process: Process, parent: int) -> bool:
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[1]) == parent


def signalled(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return whether there was anybody."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
