"""Kill at random, on real processes, and see that nothing is lost: `make soak`.

Some small jobs train on the local backend, each under a detached supervisor. Again and again one process of one of them gets a
SIGKILL: a supervisor (another is started in its place), a coordinator, an agent or a worker. In half of the cases the next kill
does not wait until the job trains again. At last the jobs are told to finish. What must be so then, and is counted:

- duplicates: never did a slot have two live agents for a second, or a job two live coordinators of one term;
- orphans: no process of any job is left;
- lost records: each record can be read, and its history is in order;
- phases: every job has succeeded, because its budgets allow every fault.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rallypoint.supervision.record import Phase
from rallypoint.wire.env import HOME
from rallypoint.wire.status import JobState
from tests.live.jobs import Job, Process, processes
from tests.waiting import eventually

WORKER = Path(__file__).with_name("worker.py")
KINDS = ("supervisor", "coordinator", "node", "worker")
PATIENT = 120.0


class Soaked:
    """One job under fire."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.home, self.over = folder / "home", folder / "over"
        self.env = {**os.environ, HOME: str(self.home)}
        self.job = Job.write(
            folder,
            self.home,
            *(str(self.over), "0.05"),
            entrypoint=str(WORKER),
            nodes="1:2",
            nproc_per_node=2,
            recovery={"max_restarts": 100_000, "node_replacements": 100_000, "stop_grace_period": "5s"},
            fault_tolerance={"retry_limit": 3},
        )
        self.duplicates: list[str] = []

    def command(self, *words: object) -> None:
        """Run `rallypoint` with this job's home."""
        subprocess.run(
            [sys.executable, "-m", "rallypoint.cli.main", *map(str, words)], env=self.env, check=True, capture_output=True
        )

    def supervise(self) -> None:
        """Start another detached supervisor, as a person would."""
        subprocess.Popen(
            [sys.executable, "-m", "rallypoint.cli.main", "supervise", self.job.name],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def look(self) -> dict[str, list[Process]]:
        """Return the live processes by what they are."""
        found: dict[str, list[Process]] = {kind: [] for kind in KINDS}
        for process in processes(str(self.home)):
            kind = _kind(process.command)
            if kind:
                found[kind].append(process)
        return found

    def check(self) -> None:
        """Note two agents or coordinators of one name that both live for a second: a fork is one for a moment."""
        try:
            eventually(lambda: not self._doubled(), timeout=1.0)
        except AssertionError:
            self.duplicates.append(f"{self.home}: two processes of {', '.join(self._doubled())}")

    def _doubled(self) -> list[str]:
        found = self.look()
        marks = collections.Counter(p.mark for p in (*found["node"], *found["coordinator"]) if p.mark)
        return [mark for mark, count in marks.items() if count > 1]

    def trains(self) -> bool:
        """Return whether its world trains now."""
        with contextlib.suppress(OSError, ValueError):
            status = self.job.status
            return status is not None and status.state is JobState.RUNNING and bool(self.look()["worker"])
        return False

    def ended(self) -> bool:
        """Return whether its record says that it is over."""
        with contextlib.suppress(OSError):
            return self.job.record.released
        return False


def _kind(command: str) -> str:
    if "rallypoint.backends.local.shim" in command or "store_host" in command:
        return ""
    if "rallypoint.cli.main supervise" in command:
        return "supervisor"
    for kind in ("coordinator", "node"):
        if f"rallypoint.agent {kind} " in command:
            return kind
    return "worker" if WORKER.name in command else ""


def main() -> int:
    """Soak; 1 when anything was lost, left or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of the choices; printed, so that a run can be made again")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    print(f"{args.kills} kills of {args.jobs} jobs, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rallypoint-soak-") as place:
        jobs = [Soaked(Path(place) / f"job-{number}") for number in range(args.jobs)]
        try:
            return _soak(jobs, args.kills, random.Random(seed))
        finally:
            for job in jobs:
                for process in processes(str(job.home)):
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()


def _soak(jobs: Sequence[Soaked], kills: int, chance: random.Random) -> int:
    began = time.monotonic()
    for job in jobs:
        job.command("submit", job.job.folder / "job.json")
    for job in jobs:
        eventually(job.trains, timeout=PATIENT, why="a job should train before it is shot at")
    tally: collections.Counter[str] = collections.Counter()
    while tally.total() < kills:
        job = chance.choice(jobs)
        if chance.random() < 0.5:
            eventually(job.trains, timeout=PATIENT, why=lambda job=job: f"{job.home} should train again: {job.job.tell()}")  # type: ignore[misc]
        tally[_shoot(job, chance)] += 1
        job.check()
        if tally.total() % 20 == 0:
            print(f"{tally.total():>5} kills in {time.monotonic() - began:.0f} s", flush=True)
    print("killed:", ", ".join(f"{count} {kind}s" for kind, count in sorted(tally.items())), flush=True)
    return _verdict(jobs)


def _shoot(job: Soaked, chance: random.Random) -> str:
    """Kill one process of a job at random; return what it was."""
    while True:
        kind = chance.choice(KINDS)
        there = job.look()[kind]
        if there:
            break
    with contextlib.suppress(ProcessLookupError):
        chance.choice(there).kill()
    if kind == "supervisor":
        job.supervise()
    return kind


def _verdict(jobs: Sequence[Soaked]) -> int:
    for job in jobs:
        if not job.look()["supervisor"]:
            job.supervise()
        eventually(job.trains, timeout=PATIENT, why=job.job.tell)
        job.over.touch()
    troubles: list[str] = []
    for job in jobs:
        eventually(job.ended, timeout=PATIENT, why=job.job.tell)
        record = job.job.record
        if record.phase is not Phase.SUCCEEDED:
            troubles.append(f"{job.home}: {record.phase.value} in attempt {record.attempt}: {record.verdict}")
        gone = [e.at for e in record.history]
        if gone != sorted(gone):
            troubles.append(f"{job.home}: the history is not in order")
        troubles += job.duplicates
        eventually(lambda job=job: not processes(str(job.home)), timeout=PATIENT, why=f"{job.home}: orphans")  # type: ignore[misc]
        faults, size = len(record.incidents) + sum(folded.count for folded in record.folded), len(record.to_json())
        how = f"{record.phase.value} in attempt {record.attempt}"
        print(f"{job.home.parent.name}: {how}, {faults} incidents, {size} bytes of record")
    found = f"{len(troubles)} troubles: duplicates, orphans, lost records or wrong phases"
    print(*troubles, found, sep="\n", flush=True)
    return int(bool(troubles))


if __name__ == "__main__":
    sys.exit(main())
