"""The jobs of one soak: submitted, watched, supervised again when a supervisor was killed, and judged when they are over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.detach import spawn_supervisor
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.job import load_job
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.incident import Cause, Incident
from tests.live.jobs import Process, processes
from tests.waiting import eventually

__all__ = ["FRAIL", "STURDY", "Budgets", "SoakJob", "complaints", "expected_phase", "kill", "submitted", "survivors"]

#: Seconds for which a process that forks may look like two.
_MOMENT = 2.0

WITNESS = Path(__file__).with_name("witness.py")


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """How much a job may lose until it fails."""

    max_restarts: int
    node_replacements: int
    retry_limit: int


#: No number of kills that is made here ends the one; a few end the other.
STURDY = Budgets(max_restarts=1000, node_replacements=1000, retry_limit=100)
FRAIL = Budgets(max_restarts=1, node_replacements=0, retry_limit=1)


def submitted(document: dict[str, Any], *, home: Path, base: Path, owner: str) -> str:
    """Submit a job on the local backend, and return its uid; nobody supervises it yet."""

    async def go() -> str:
        backend = LocalBackend(home)
        try:
            blueprint = backend.plan(load_job(document, base=base))
            return (await submit_or_adopt(backend, blueprint, owner=owner)).stored.record.uid
        finally:
            await backend.close()

    return asyncio.run(go())


@dataclass
class SoakJob:
    """One job, and what was seen of its record so far."""

    name: str
    folder: Path
    home: Path
    budgets: Budgets
    steps: int
    pause: float
    uid: str = ""
    seen: frozenset[Any] = frozenset()
    attempt: int = 0
    faults: list[str] = field(default_factory=list)

    def submit(self) -> None:
        """Submit it, with a supervisor of its own."""
        document = {
            "name": self.name,
            "entrypoint": str(WITNESS),
            "args": [str(self.steps), str(self.pause)],
            "nodes": "1:2",
            "nproc_per_node": 1,
            "checkpoint_dir": str(self.folder / self.name),
            "recovery": {
                "max_restarts": self.budgets.max_restarts,
                "node_replacements": self.budgets.node_replacements,
                "stop_grace_period": "2s",
            },
            "rendezvous": {"last_call_timeout": "2s"},
            "fault_tolerance": {
                "retry_limit": self.budgets.retry_limit,
                "retry_pause_period": 0,
                "failure_grace_period": "1s",
                "no_progress_limit": 0,
            },
            "health": {"report_interval": "200ms"},
        }
        self.uid = submitted(document, home=self.home, base=self.folder, owner="soak")
        self.supervise()

    def supervise(self) -> None:
        """Let one more supervisor look after it."""
        spawn_supervisor(self.home, self.name)

    def delete(self) -> None:
        """Delete it; returns when nothing of it is left."""

        async def go() -> None:
            backend = LocalBackend(self.home)
            try:
                await delete(backend, self.name, holder="soak", timeout=600.0)
            finally:
                await backend.close()

        asyncio.run(go())

    @property
    def record(self) -> JobRecord:
        """The record as it is on disk."""
        return JobRecord.from_json((self.home / "jobs" / self.name / "record.json").read_bytes())

    def look(self) -> JobRecord:
        """Read the record, and see that it has forgotten nothing."""
        record = self.record
        ids = frozenset(incident.id for incident in record.incidents)
        if not record.folded and self.seen - ids:
            self.faults.append(f"{self.name}: the record has lost {sorted(self.seen - ids)}")
        if record.uid != self.uid or record.attempt < self.attempt:
            self.faults.append(f"{self.name}: the record went back, to attempt {record.attempt} of {record.uid}")
        self.seen, self.attempt = ids, record.attempt
        return record

    def count(self) -> None:
        """See that no node and no coordinator is there twice; for a moment each is, when it forks."""
        try:
            eventually(lambda: not self._doubled(), timeout=_MOMENT, every=0.1)
        except AssertionError:
            self.faults.append(f"{self.name}: two processes are {', '.join(self._doubled())}")

    def _doubled(self) -> list[str]:
        marks = Counter(p.mark for kind in ("agent", "coordinator") for p in self.victims(kind))
        return [mark for mark, count in marks.items() if count > 1]

    # --- Its processes ------------------------------------------------------------------------------------------------------

    def victims(self, kind: str) -> list[Process]:
        """Return the processes of a kind: supervisor, coordinator, agent, shim, worker."""
        everyone = processes(str(self.home))
        if kind == "supervisor":
            return [p for p in everyone if f" supervise {self.name} " in f"{p.command} "]
        ours = [p for p in everyone if p.mark.startswith(f"{self.uid}/")]
        return [p for p in ours if _kind(p) == kind]


def _kind(process: Process) -> str:
    if "backends.local.shim" in process.command:
        return "shim"
    if WITNESS.name in process.command and "rallypoint.agent" not in process.command:
        return "worker"
    words = process.command.split()
    if "rallypoint.agent" in words:
        return "coordinator" if "coordinator" in words else "agent"
    return "other"


def kill(process: Process) -> bool:
    """Kill a process; return whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


# --- What the model says ---------------------------------------------------------------------------------------------------


def complaints(job: SoakJob) -> list[str]:
    """Return what is wrong with a job that is over: how it ended must follow from what happened to it, by its budgets."""
    record, found = job.record, list(job.faults)
    witness = job.folder / job.name / "duplicates"
    if witness.exists():
        found.extend(f"{job.name}: {line}" for line in witness.read_text().splitlines())
    if not record.released:
        found.append(f"{job.name}: {record.phase.value}, but not released")
    expected = expected_phase(record, job.budgets)
    if record.phase is not expected:
        verdict = "" if record.verdict is None else f" ({record.verdict.reason}: {record.verdict.message})"
        found.append(f"{job.name}: it is {record.phase.value}{verdict}, and by what happened it should be {expected.value}")
    done = job.folder / job.name / "step"
    if record.phase is Phase.SUCCEEDED and (not done.exists() or int(done.read_text()) != job.steps):
        found.append(f"{job.name}: it succeeded, but not at step {job.steps}")
    if record.retries > job.budgets.retry_limit or record.attempt > job.budgets.retry_limit + 1:
        found.append(f"{job.name}: {record.retries} retries and {record.attempt} attempts of {job.budgets.retry_limit}")
    return found


def expected_phase(record: JobRecord, budgets: Budgets, *, least: int = 1) -> Phase:
    """Return how a job must end: it fails when the last attempt that it may have has spent a budget, and else succeeds.

    `least` is the least number of nodes that it trains with.
    """
    last = record.attempt > budgets.retry_limit
    return Phase.FAILED if last and _spent(record, budgets, least) else Phase.SUCCEEDED


def _spent(record: JobRecord, budgets: Budgets, least: int) -> bool:
    """Return whether something of the last attempt was struck more often than its budget answers."""
    ours = [i for i in record.incidents if i.id.attempt == record.attempt]
    counts = Counter(_what(i) for i in ours)
    for folded in record.folded:
        if folded.attempt == record.attempt:
            counts[folded.cause, folded.node if folded.cause is Cause.NODE else -1] += folded.count
    nodes = {node for (cause, node), count in counts.items() if cause is Cause.NODE and count > budgets.node_replacements}
    silent = record.silent_terms >= 3
    return counts[Cause.PROCESS, -1] > budgets.max_restarts or len(record.slots) - len(nodes) < least or silent


def _what(incident: Incident) -> tuple[Cause, int]:
    return incident.cause, incident.id.node if incident.cause is Cause.NODE else -1


def survivors(home: Path) -> Iterable[Process]:
    """Return what still runs of any job."""
    return processes(str(home))
