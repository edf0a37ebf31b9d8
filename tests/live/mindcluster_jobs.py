"""Jobs of profile `mindcluster` on the local backend, and what breaks them."""

from __future__ import annotations

import itertools
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Incident, Rung
from rallypoint.wire.status import JobStatus
from tests.live.jobs import Job
from tests.waiting import eventually

__all__ = ["GRACE", "Elastic", "agents", "counting", "drain", "faults", "kill_worker"]
__all__ += ["looks", "lose_host", "reaches", "rewritten", "rungs"]

SCRIPT = Path(__file__).parent / "scripts" / "recovering.py"
GRACE = {"fault-scheduling": "grace"}


@dataclass(frozen=True)
class Line:
    """What a rank noted at the start of a round, or after a step."""

    attempt: int
    round: int
    pid: int
    step: int
    world: int


@dataclass
class Elastic:
    """A job of scripts/recovering.py: one worker on each node."""

    job: Job

    @classmethod
    def submit(cls, folder: Path, home: Path, *flags: str, nodes: str = "2", **fields: Any) -> Elastic:
        work = folder / "work"
        work.mkdir()
        job = Job.write(folder, home, str(work), *flags, entrypoint=str(SCRIPT), nodes=nodes, **{**settings(), **fields})
        return cls(without_retry_limit(job).submit())

    @property
    def work(self) -> Path:
        return self.job.folder / "work"

    def lines(self, rank: int) -> list[Line]:
        path = self.work / f"steps.{rank}"
        rows = path.read_text().splitlines() if path.exists() else []
        return [Line(*map(int, row.split())) for row in rows if len(row.split()) == 5]

    def trains(self, *ranks: int, attempt: int = 1, round_: int = 1, steps: int = 2) -> dict[int, Line]:
        """Wait until these ranks have finished steps in a round from `round_` on; return the last line of each."""

        def ready() -> dict[int, Line] | None:
            assert not self.job.record.finished, self.job.tell()
            found = {}
            for rank in ranks:
                rows = [line for line in self.lines(rank) if (line.attempt, line.round) >= (attempt, round_)]
                if not rows or sum(line.round == rows[-1].round for line in rows) <= steps:
                    return None
                found[rank] = rows[-1]
            return found

        why = f"ranks {ranks} should train in round {round_} of attempt {attempt}"
        return eventually(ready, timeout=30.0, why=lambda: f"{why}: {self.job.tell()}")

    def breaks(self, rank: int, how: str) -> None:
        (self.work / f"fault.{rank}").write_text(how)

    def ends(self) -> JobRecord:
        (self.work / "enough").touch()
        return self.job.ends(timeout=30.0)


def settings() -> dict[str, Any]:
    """Return the fields that all jobs here have."""
    return {
        "nproc_per_node": 1,
        "recovery": {"stop_grace_period": "1s"},
        "health": {"report_interval": "100ms", "node_lease": "15s"},
    }


def without_retry_limit(job: Job) -> Job:
    """Let the budget of a job follow its label fault-retry-times."""
    return rewritten(job, "fault_tolerance", retry_limit=None)


def rewritten(job: Job, block: str, **fields: Any) -> Job:
    """Change fields of a block in a job's file; None takes one away."""
    path = job.folder / "job.json"
    document = json.loads(path.read_text())
    document[block] = {key: value for key, value in {**document[block], **fields}.items() if value is not None}
    path.write_text(json.dumps(document))
    return job


def faults(record: JobRecord, attempt: int = 1) -> list[Incident]:
    """Return the incidents of an attempt in the order in which they were detected, without the resets."""
    found = [i for i in record.incidents if i.id.attempt == attempt and i.rung is not Rung.RESET]
    return sorted(found, key=lambda incident: incident.detected_at)


def rungs(record: JobRecord, attempt: int = 1) -> list[Rung]:
    return [incident.rung for incident in faults(record, attempt)]


def counting(folder: Path, home: Path, **fields: Any) -> Job:
    """Return an endless job of scripts/count.py: two nodes with a worker each."""
    return without_retry_limit(Job.write(folder, home, 1, 0.05, endless=True, **{"nodes": 2, **settings(), **fields}))


def agents(job: Job, node: int) -> list[int]:
    return [process.pid for process in job.agents("node") if f"--node {node} " in process.command]


def drain(job: Job, node: int) -> None:
    """Ask the agent of a node to end, as the kubelet does in a pod that is drained."""
    [agent] = [process for process in job.agents("node") if f"--node {node} " in process.command]
    agent.kill(signal.SIGTERM)


def lose_host(job: Job, node: int) -> None:
    """Kill everything that runs on a node, its shim first, so that nothing tells how its agent ended."""
    found = job.processes("rallypoint", f"--node {node} ")
    assert found, job.tell()
    for process in sorted(found, key=lambda process: "shim" not in process.command):
        process.kill()


def kill_worker(job: Job, status: JobStatus, rank: int) -> None:
    pid = next(worker.pid for worker in status.ranks if worker.rank == rank)
    next(process for process in job.processes() if process.pid == pid).kill()


def reaches(job: Job, attempt: int) -> JobRecord:
    """Wait for an attempt to begin."""

    def begun() -> JobRecord | None:
        record = job.record
        assert not record.finished, job.tell()
        return record if record.attempt >= attempt else None

    return eventually(begun, timeout=30.0, why=job.tell)


def looks(job: Job, count: int) -> list[float]:
    """Return the seconds between the next looks at a worker's health, by when rank 0 is known to be further."""
    seen: list[tuple[float, int]] = []

    def enough() -> bool:
        status = job.status
        step = next((worker.step for worker in status.ranks if worker.rank == 0), None) if status is not None else None
        if step is not None and step != (seen[-1][1] if seen else None):
            seen.append((time.monotonic(), step))
        return len(seen) > count + 1  # the first was not seen when it came

    eventually(enough, timeout=60.0, why=job.tell)
    return [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen[1:])]
