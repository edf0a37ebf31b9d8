"""Kill whatever can be killed, at random, hundreds of times, and see that nothing is twice, lost, or left behind.

Several small jobs run at once. Of them supervisors, coordinators, agents, shims and workers are killed with SIGKILL;
supervisors come back after a while, sometimes two of them. A job that is over is followed by another. Afterwards: no rank was
ever two processes, no record has forgotten anything, every job ended as its budgets and what happened to it say, and nothing
is left.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rallypoint.supervision.record import Phase
from tests.soak.field import FRAIL, STURDY, SoakJob, complaints, kill, survivors
from tests.waiting import eventually

#: What is killed, and how often one of a hundred.
KINDS = {"supervisor": 20, "coordinator": 20, "agent": 20, "shim": 15, "worker": 25}

#: How often a job that has a supervisor is given a second one.
_TWO = 0.05

#: Longest pause between two kills, in seconds.
_PAUSE = 1.0

#: How often a job is struck only once it trains.
_TRAINING = 0.6

#: Seconds that a job may take to end once nobody is killed any more, and everything to be gone then.
_ENDS, _GONE = 900.0, 60.0


def main() -> int:
    """Soak; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="processes to kill (200)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="repeats the choices of an earlier run")
    parser.add_argument("--jobs", type=int, default=3, metavar="J", help="jobs at a time (3)")
    parser.add_argument("--steps", type=int, default=300, help="steps of each job, of 50 ms (300)")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder), random.Random(seed), steps=args.steps)
        began = time.monotonic()
        try:
            soak.run(args.kills, args.jobs)
            found = soak.end()
        finally:
            for process in survivors(soak.home):
                kill(process)
        print(soak.summary(time.monotonic() - began), *found, f"seed {seed}", sep="\n", flush=True)
    return 1 if found else 0


class Soak:
    """One soak, under a home of its own."""

    def __init__(self, folder: Path, chance: random.Random, *, steps: int) -> None:
        self.folder, self.home, self.chance, self.steps = folder, folder / "home", chance, steps
        self.running: list[SoakJob] = []
        self.over: list[SoakJob] = []
        self.kills: Counter[str] = Counter()

    def run(self, kills: int, jobs: int) -> None:
        """Kill as many processes of as many jobs."""
        told = 0
        while self.kills.total() < kills:
            while len(self.running) < jobs:
                self.begin()
            job = self.chance.choice(self.running)
            if self.chance.random() < _TRAINING:
                self.until_it_trains(job)
            self.strike(job)
            self.look_after(self.chance.random() < 0.5)
            time.sleep(self.chance.uniform(0.0, _PAUSE))
            if self.kills.total() >= told + 20:
                told = self.kills.total()
                print(f"{self.kills.total():>4} of {kills} kills, {len(self.over)} jobs are over", flush=True)

    def begin(self) -> None:
        """Submit one more job; every third is frail."""
        number = len(self.running) + len(self.over)
        budgets = FRAIL if number % 3 == 2 else STURDY
        job = SoakJob(name=f"soak-{number}", folder=self.folder, home=self.home, budgets=budgets, steps=self.steps, pause=0.05)
        job.submit()
        self.running.append(job)

    def until_it_trains(self, job: SoakJob) -> None:
        """Wait until a job has a worker, or is over: a job that is struck all the time never comes to that."""

        def trains() -> bool:
            self.look_after(supervise=True)
            return job not in self.running or bool(job.victims("worker"))

        eventually(trains, timeout=_ENDS, every=0.3, why=f"{job.name} should train again")

    def strike(self, job: SoakJob) -> None:
        """Kill something of a job, if it has any of the kind that was drawn."""
        [kind] = self.chance.choices(list(KINDS), list(KINDS.values()))
        victims = sorted(job.victims(kind), key=lambda process: process.pid)
        if victims and kill(self.chance.choice(victims)):
            self.kills[kind] += 1

    def look_after(self, supervise: bool) -> None:
        """Read every record; give supervisors to jobs that have none, if the coin says so; put away what is over."""
        for job in tuple(self.running):
            job.count()
            if job.look().released:
                self.running.remove(job)
                self.over.append(job)
            elif supervise and len(job.victims("supervisor")) < (2 if self.chance.random() < _TWO else 1):
                job.supervise()

    def end(self) -> list[str]:
        """Kill nobody any more, wait for all jobs, and return what is wrong."""

        def all_over() -> bool:
            self.look_after(supervise=True)
            return not self.running

        try:
            eventually(all_over, timeout=_ENDS, every=2.0)
        except AssertionError:
            return [f"{job.name} does not end: {job.record.phase.value}" for job in self.running]
        found = [what for job in self.over for what in complaints(job)]
        self.phases = Counter(job.record.phase for job in self.over)
        for job in self.over:
            job.delete()
        try:
            eventually(lambda: not list(survivors(self.home)), timeout=_GONE, every=0.5)
        except AssertionError:
            found.extend(f"left behind: {process.pid} {process.command}" for process in survivors(self.home))
        left = list((self.home / "jobs").iterdir())
        return [*found, *(f"left behind: {path}" for path in left)]

    def summary(self, seconds: float) -> str:
        """Return what was done, in a few lines."""
        kinds = ", ".join(f"{count} {kind}s" for kind, count in sorted(self.kills.items()))
        ends = ", ".join(f"{count} {phase.value}" for phase, count in getattr(self, "phases", Counter[Phase]()).items())
        return f"{self.kills.total()} kills ({kinds}) in {seconds:.0f} s\n{len(self.over)} jobs: {ends}"


if __name__ == "__main__":
    sys.exit(main())
