"""Everything that can go wrong with real jobs, at random, hundreds of times: `python -m tests.soak.chaos --faults N --seed S`.

Jobs of six kinds are run in turn, each struck by some faults: workers are killed, stopped, raise and exit; agents, shims,
coordinators and supervisors are killed; checkpoints and snapshots are torn; disks are full. A job ends with the weights of the
undisturbed run, bit by bit, or with the verdict that its budgets and its terminal exit codes demand. Nobody resumes from what
was torn, or from what is older than the last whole save; never do two worlds train (ledger.py).

The seed repeats every choice: the jobs, the faults, whom they strike and after how many steps. What processes do in between is
theirs. The exit code is 1 where anything was wrong; the folder is kept then.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak.disk import Disk, private_mounts
from tests.soak.faults import FAULTS, Act, Stage, end_finally
from tests.soak.field import FRAIL, STURDY, kill, survivors
from tests.soak.ledger import lost_steps
from tests.soak.lesson import course
from tests.soak.trial import KINDS, Job, Kind, Program, Sight, Trial
from tests.waiting import eventually

#: Bytes of the disk for checkpoints and of the one for the jobs' own files.
_CHECKPOINTS, _HOME = 24 << 20, 48 << 20

#: Seconds (patient ones, tests/waiting.py) until a job trains again, ends once nobody strikes it, and is gone then.
_TRAINS, _ENDS, _GONE = 20.0, 40.0, 10.0

#: Steps of every rank by which a job has shown that it goes on.
_AGAIN = 3

#: How often a fault is followed by another at once, while the job still recovers from the first.
_HEAPED = 0.2

#: How often a job is one that ends by a terminal exit code, and one that may lose little.
_FINAL, _FRAIL = 0.12, 0.12

#: What became of a job that was struck.
_OUTCOMES = ("went on", "workers lived on", "workers restarted", "next attempt", "struck again", "ended")


def main() -> int:
    """Soak; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500, metavar="N", help="faults to make (500)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="repeats the choices of an earlier run")
    parser.add_argument("--calm", action="store_true", help="run each kind of job once without any fault first")
    parser.add_argument("--steps", type=int, default=400, help="steps of each job (400)")
    parser.add_argument("--per-job", type=int, default=12, metavar="M", help="faults that one job gets at most (12)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only jobs of the kinds with these words in their name")
    parser.add_argument("--silence", default="6s", help="a world without progress for so long hangs (6s)")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    why = private_mounts()
    print(f"seed {seed}{f'; no disk is ever full: {why}' if why else ''}", flush=True)
    where = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos = Chaos(where, random.Random(seed), steps=args.steps, silence=args.silence, why=why)
    try:
        chaos.run(args.faults, per_job=args.per_job, calm=args.calm, only=args.only)
    finally:
        chaos.close()
        print(chaos.summary(), *chaos.wrong, f"seed {seed}", sep="\n", flush=True)
    if chaos.wrong:
        print(f"what is left of them is in {where}", flush=True)
    else:
        shutil.rmtree(where, ignore_errors=True)
    return 1 if chaos.wrong else 0


class Chaos:
    """One soak, in a folder of its own."""

    def __init__(self, where: Path, chance: random.Random, *, steps: int, silence: str, why: str) -> None:
        self.where, self.chance, self.steps, self.silence = where, chance, steps, silence
        self.course = course(steps)
        self.disks = Disk(where / "disk", _CHECKPOINTS, why), Disk(where / "home", _HOME, why)
        self.stage = Stage(chance=chance, checkpoints=self.disks[0], home=self.disks[1], memory=Path("/dev/shm"))
        self.table: dict[str, Counter[str]] = {name: Counter() for name in FAULTS}
        self.table["a worker exits with a terminal code"] = Counter()
        self.trials: Counter[str] = Counter()
        self.lost: list[int] = []
        self.resumed = 0
        self.wrong: list[str] = []
        self.began = time.monotonic()

    @property
    def faults(self) -> int:
        """How many were made."""
        return sum(found.total() for found in self.table.values())

    def run(self, faults: int, *, per_job: int, calm: bool, only: str) -> None:
        """Make as many faults, of as many jobs as that takes; `calm`: after each kind of job was run once without any."""
        order = [kind for kind in KINDS if only in kind.name]
        for kind in order if calm else ():
            self.try_(self.new(f"calm-{order.index(kind)}", kind), 0)
        self.chance.shuffle(order)
        for number in range(sys.maxsize):
            if self.faults >= faults or len(self.wrong) > 20:
                return
            kind = order[number % len(order)]
            most = min(self.chance.randint(max(1, per_job // 3), per_job), faults - self.faults)
            self.try_(self.new(f"chaos-{number}", kind), most)
            print(f"{self.faults:>4} of {faults} faults, {number + 1} jobs, {time.monotonic() - self.began:.0f} s", flush=True)

    def new(self, name: str, kind: Kind) -> Trial:
        """Return the next job."""
        home, disk = self.disks[1].path, self.disks[0].path
        if kind.script == "called":
            return Program(name, kind, self.where, home, disk, self.steps)
        budgets = FRAIL if self.chance.random() < _FRAIL else STURDY
        return Job(name, kind, self.where, home, disk, self.steps, budgets, silence=self.silence)

    def try_(self, trial: Trial, most: int) -> None:
        """Run one job through at most so many faults, and judge it."""
        last = isinstance(trial, Job) and self.chance.random() < _FINAL
        (trial.folder / "course").write_text("\n".join(self.course))
        try:
            trial.begin()
            for left in reversed(range(most)):
                if not self.strike(trial, last=last and left == 0):
                    break
            trial.hasten()
            eventually(trial.look_after, timeout=_ENDS, every=0.2, why=f"{trial.name} ({trial.kind.name}) ends")
        except AssertionError as error:
            self.wrong.append(f"{trial.name} ({trial.kind.name}): {error}")
            self.clear()
            return
        wrong = trial.judge(self.course)
        lines = trial.lines
        self.lost += lost_steps(lines)
        self.resumed += sum(line.what == "resumed" for line in lines)
        self.wrong += wrong
        self.trials[_how_it_ended(trial)] += 1
        if wrong:
            # The jobs' disk is small, and ends with the soak.
            shutil.copytree(trial.home, trial.folder / "home", ignore=_no_files, dirs_exist_ok=True)
        else:
            trial.remove()
            shutil.rmtree(trial.checkpoints, ignore_errors=True)
            shutil.rmtree(trial.folder)
        self.gone(trial)

    def strike(self, trial: Trial, *, last: bool) -> bool:
        """Wait until it trains, and let one thing go wrong; return False where it is over."""
        if not self.trains(trial, self.chance.randint(1, 8)):
            return False
        before = Sight.of(trial.lines)
        name, act = ("a worker exits with a terminal code", end_finally) if last else self.draw(trial.kind)
        if not act(trial, self.stage):
            return True
        if self.chance.random() < _HEAPED and not last:
            self.table[name]["struck again"] += 1
            time.sleep(self.chance.uniform(0.0, 1.0))
            name, act = self.draw(trial.kind)
            if not act(trial, self.stage):
                return True
        on = self.trains(trial, _AGAIN)
        self.table[name][_outcome(before, Sight.of(trial.lines)) if on else "ended"] += 1
        return on

    def draw(self, kind: Kind) -> tuple[str, Act]:
        """Return a fault that may happen to a kind of job, by name and deed."""
        possible = {name: f for name, f in FAULTS.items() if f.to(kind) and not (f.disk and self.disks[0].why)}
        [name] = self.chance.choices(list(possible), [fault.weight for fault in possible.values()])
        return name, possible[name].act

    def trains(self, trial: Trial, steps: int) -> bool:
        """Wait until so many more steps are made by every rank; return False where the job is over."""
        begin = len(trial.lines)
        over = False

        def seen() -> bool:
            nonlocal over
            over = trial.look_after()
            lines = trial.lines[begin:]
            newest = max((line.round for line in lines if line.what == "step"), default=(0, 0))
            last = [line for line in lines if line.what == "step" and line.round == newest]
            everybody = last and len({line.rank for line in last}) == last[0].world and len(last) >= steps * last[0].world
            return bool(over or everybody)

        eventually(seen, timeout=_TRAINS, every=0.05, why=f"{trial.name} ({trial.kind.name}) trains again")
        return not over

    def gone(self, trial: Trial) -> None:
        """See that nothing of a job is left."""
        try:
            eventually(lambda: not list(survivors(self.disks[1].path)), timeout=_GONE, every=0.2)
        except AssertionError:
            found = [f"{trial.name}: left behind: {p.pid} {p.command}" for p in survivors(self.disks[1].path)]
            self.wrong += found
            self.clear()

    def clear(self) -> None:
        """Kill whatever is left."""
        for process in survivors(self.disks[1].path):
            kill(process)

    def close(self) -> None:
        """Leave nothing that runs."""
        self.clear()
        if not self.wrong:
            for disk in self.disks:
                disk.close()

    def summary(self) -> str:
        """Return what was done, and what came of it."""
        width = max(map(len, self.table))
        head = f"{'':<{width}}" + "".join(f"{word:>19}" for word in _OUTCOMES)
        rows = [
            f"{name:<{width}}" + "".join(f"{found[word] or '-':>19}" for word in _OUTCOMES)
            for name, found in self.table.items()
            if found
        ]
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.trials.items()))
        lost = f"{statistics.median(self.lost):g} (median), {max(self.lost)} (most)" if self.lost else "none"
        return "\n".join(
            (
                f"{self.faults} faults in {time.monotonic() - self.began:.0f} s; {self.trials.total()} jobs: {ends}",
                f"{self.resumed} times a rank resumed; steps made in vain per new round: {lost}",
                head,
                *rows,
            )
        )


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Return what cannot be copied: sockets, pipes, links."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.is_symlink() or not (path.is_file() or path.is_dir())]


def _outcome(before: Sight, after: Sight) -> str:
    if after.round == before.round:
        return "went on"
    if after.round[0] != before.round[0]:
        return "next attempt"
    return "workers lived on" if before.pids & after.pids else "workers restarted"


def _how_it_ended(trial: Trial) -> str:
    if isinstance(trial, Job):
        return "not readable" if trial.record is None else trial.record.phase.value
    return "returned"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.pop("RALLYPOINT_HOME", None)
    sys.exit(main())
