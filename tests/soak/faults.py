"""What goes wrong in the chaos soak: each kind of fault, to whom it may happen, and how it is done."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rallypoint.checkpoint import folder
from rallypoint.checkpoint.memory import BUFFER, HEADER
from tests.soak.disk import Disk
from tests.soak.trial import FINAL_CODE, Job, Kind, Trial, signalled

__all__ = ["FAULTS", "Act", "Fault", "Stage", "end_finally"]

#: Seconds for which somebody waits for a file to be half written.
_CATCH = 3.0

#: Seconds that a disk stays full.
_FULL = (0.3, 2.0)

#: Exit codes of workers that any job takes for a fault like others.
_CODES = (1, 2, 7, 15, 99, 139, 255)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a fault is done with: the dice, the disks, and where workers keep what they remember."""

    chance: random.Random
    checkpoints: Disk
    home: Disk
    memory: Path


Act = Callable[[Trial, Stage], bool]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault: `act` returns whether it was done; `to` says which kinds of jobs it may happen to."""

    weight: int
    act: Act
    to: Callable[[Kind], bool] = lambda _: True
    disk: bool = False


def _supervised(kind: Kind) -> bool:
    return kind.script != "called"


def _some_worker(trial: Trial, stage: Stage) -> tuple[int, int] | None:
    workers = trial.workers()
    if not workers:
        return None
    rank = stage.chance.choice(sorted(workers))
    return rank, workers[rank]


def _kill_worker(trial: Trial, stage: Stage) -> bool:
    one = _some_worker(trial, stage)
    return one is not None and signalled(one[1])


def _kill_all_workers(trial: Trial, _: Stage) -> bool:
    return _killed(trial.workers().values())


def _killed(pids: Iterable[int]) -> bool:
    """Kill all of them; return whether anybody was there."""
    return sum(map(signalled, pids)) > 0


def _stop_worker(trial: Trial, stage: Stage) -> bool:
    """It stays so: it is for the job to notice."""
    one = _some_worker(trial, stage)
    return one is not None and signalled(one[1], signal.SIGSTOP)


def _pause_worker(trial: Trial, stage: Stage) -> bool:
    one = _some_worker(trial, stage)
    return one is not None and _paused(one[1], stage.chance.uniform(0.05, 1.5))


def _raise(trial: Trial, stage: Stage) -> bool:
    return _ordered(trial, stage, "raise")


def _exit(trial: Trial, stage: Stage) -> bool:
    return _ordered(trial, stage, f"exit {stage.chance.choice(_CODES)}")


def _exit_well(trial: Trial, stage: Stage) -> bool:
    """One of several: a script that is alone in its world and ends well is done, for all that anybody can know."""
    return len(trial.workers()) > 1 and _ordered(trial, stage, "exit 0")


def _ordered(trial: Trial, stage: Stage, words: str) -> bool:
    one = _some_worker(trial, stage)
    if one is not None:
        trial.order(one[0], words)
    return one is not None


def end_finally(trial: Trial, stage: Stage) -> bool:
    """Have a rank end with the code that ends the job."""
    trial.final = _ordered(trial, stage, f"exit {FINAL_CODE}")
    return trial.final


def _kill(part: str) -> Act:
    def act(trial: Trial, stage: Stage) -> bool:
        found = sorted(trial.victims(part), key=lambda process: process.mark)
        return bool(found) and signalled(stage.chance.choice(found).pid)

    return act


def _stop_agent(trial: Trial, stage: Stage) -> bool:
    """For less than its lease, or for longer: then it wakes up as one that was given up."""
    found = sorted(trial.victims("agent"), key=lambda process: process.mark)
    return bool(found) and _paused(stage.chance.choice(found).pid, stage.chance.uniform(0.2, 6.0))


def _paused(pid: int, seconds: float) -> bool:
    if not signalled(pid, signal.SIGSTOP):
        return False
    awake = threading.Timer(seconds, signalled, (pid, signal.SIGCONT))
    awake.daemon = True
    awake.start()
    return True


def _tear_write(trial: Trial, stage: Stage) -> bool:
    """Kill whoever writes a checkpoint, while it is half written."""
    one = _some_worker(trial, stage)
    until = time.monotonic() + _CATCH
    while one is not None and time.monotonic() < until:
        if any(trial.checkpoints.glob("*.tmp")):
            return signalled(one[1])
        time.sleep(0.0005)
    return False


def _tear_checkpoint(trial: Trial, stage: Stage) -> bool:
    """Cut a file of the newest checkpoint off, as a machine does that loses its power; then everybody must resume."""
    with _standing_still(trial) as pids:
        found = folder.listing(trial.checkpoints)
        if len(found) < 2 or folder.newest(trial.checkpoints) != found[0] or len(folder.complete(trial.checkpoints)) < 2:
            return False
        files = sorted(path for path in found[0].path.iterdir() if path.is_file() and path.stat().st_size > 1)
        torn = stage.chance.choice(files)
        with torn.open("r+b") as file:
            file.truncate(stage.chance.randrange(torn.stat().st_size))
        trial.note("damaged", found[0].step, time.monotonic())
        return _killed(pids)


def _tear_snapshot(trial: Trial, stage: Stage) -> bool:
    """Overwrite some bytes of the newest snapshot in memory; then everybody must resume."""
    with _standing_still(trial) as pids:
        headers = [h for h in stage.memory.glob(f"rallypoint-snapshots-*/rank-*/*{HEADER}") if _is_of(h, trial)]
        if not headers or not pids:
            return False
        newest = max(headers, key=lambda path: path.stat().st_mtime_ns)
        buffer = newest.with_suffix(BUFFER)
        with buffer.open("r+b") as file:
            file.seek(stage.chance.randrange(700_000))
            file.write(stage.chance.randbytes(4096))
        return _killed(pids)


def _is_of(header: Path, trial: Trial) -> bool:
    with contextlib.suppress(OSError):
        return isinstance(trial, Job) and trial.uid in header.read_text()
    return False


@contextlib.contextmanager
def _standing_still(trial: Trial) -> Iterator[list[int]]:
    pids = [pid for pid in trial.workers().values() if signalled(pid, signal.SIGSTOP)]
    try:
        yield pids
    finally:
        for pid in pids:
            signalled(pid, signal.SIGCONT)


def _fill(disk: Disk, stage: Stage) -> bool:
    with disk.full():
        time.sleep(stage.chance.uniform(*_FULL))
    return True


FAULTS: Mapping[str, Fault] = {
    "a worker is killed": Fault(weight=18, act=_kill_worker),
    "all workers are killed": Fault(weight=4, act=_kill_all_workers),
    "a worker stops for good": Fault(weight=6, act=_stop_worker, to=_supervised),
    "a worker stops for a moment": Fault(weight=5, act=_pause_worker),
    "a step raises": Fault(weight=12, act=_raise),
    "a worker exits with a code": Fault(weight=10, act=_exit),
    "a worker exits with 0": Fault(weight=2, act=_exit_well),
    "an agent is killed": Fault(weight=10, act=_kill("agent")),
    "an agent stops for a while": Fault(weight=6, act=_stop_agent, to=_supervised),
    "a shim is killed": Fault(weight=4, act=_kill("shim"), to=_supervised),
    "the coordinator is killed": Fault(weight=9, act=_kill("coordinator"), to=_supervised),
    "the supervisor is killed": Fault(weight=4, act=_kill("supervisor"), to=_supervised),
    "a checkpoint is half written": Fault(weight=7, act=_tear_write),
    "the newest checkpoint is torn": Fault(weight=6, act=_tear_checkpoint),
    "the newest snapshot is torn": Fault(weight=5, act=_tear_snapshot, to=lambda kind: kind.memory),
    "the checkpoints' disk is full": Fault(weight=6, act=lambda _, stage: _fill(stage.checkpoints, stage), disk=True),
    "the job's disk is full": Fault(weight=3, act=lambda _, stage: _fill(stage.home, stage), to=_supervised, disk=True),
}
