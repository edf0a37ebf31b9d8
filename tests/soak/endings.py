"""Kill one worker in each of many runs, and count the runs that end: `python -m tests.soak.endings --kills 200 --seed S`.

A run has recovered when `rallypoint-agent run` ends with exit code 0 in time, each rank of the last round is done, and no
process is left. The net is off: `--exit-grace 0` ends no worker that hangs in its teardown. Runs are spread evenly over plain
DDP scripts and scripts with the five lines of docs/guides/recovery.md, 2 and 4 ranks, files and `-m module`, and an idle and a
loaded machine, which has 8 busy processes and 3 other runs beside the run.

The seed repeats every choice: which rank is killed, and how long after its third step. A quarter of the workers is killed
before the zygote is ready, the others when its standbys are. With `--results FILE` a later call with the same seed goes on
where an earlier one stopped. The exit code is 1 where a run did not end or ended otherwise; the folder of such a run is kept.
Ctrl-C and SIGTERM end the runs in progress, which do not count; the exit code is 130.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from benchmarks.processes import kill, tree
from tests.live.jobs import processes

__all__ = ["CELLS", "Cell", "Kill", "Result", "kills_of", "main", "run", "table"]

HERE = Path(__file__).parent
SCRIPTS = {"plain": HERE / "train_plain.py", "five lines": HERE / "train_elastic.py"}

#: Processes that are busy on a loaded machine, and runs at once there.
BUSY, AT_ONCE = 8, 4

#: Seconds until the standbys of the first round are ready, at most; a worker is killed then in any case.
_STANDBYS = 15.0

#: Share of the workers that are killed early, and how long after their third step; the pause of the others. Seconds.
_EARLY, _EARLY_PAUSE, _PAUSE = 0.25, 0.5, 1.0

#: Seconds that killed processes have to be gone.
_KILLED = 10.0

_DONE = re.compile(r"rank (\d+) is done in round (\d+): (fork|program)")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to run."""

    way: str
    ranks: int
    machine: str
    script: str


CELLS = tuple(
    Cell(way=way, ranks=ranks, machine=machine, script=script)
    for way, ranks, machine, script in itertools.product(("file", "-m"), (2, 4), ("idle", "loaded"), SCRIPTS)
)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One run: `rank` is killed `pause` seconds after its third step where it is `early`, else after standbys are ready."""

    number: int
    cell: Cell
    rank: int
    early: bool
    pause: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one run: `wrong` is "" where it recovered. `forks`: ranks of the last round that were forks."""

    seed: int
    number: int
    wrong: str
    hung: bool
    seconds: float
    forks: int


def kills_of(seed: int, count: int) -> tuple[Kill, ...]:
    """Return the runs of a seed."""
    found = []
    for number in range(count):
        chance, cell = random.Random(f"{seed} {number}"), CELLS[number % len(CELLS)]
        rank, early = chance.randrange(cell.ranks), chance.random() < _EARLY
        pause = chance.uniform(0.0, _EARLY_PAUSE if early else _PAUSE)
        found.append(Kill(number=number, cell=cell, rank=rank, early=early, pause=pause))
    return tuple(found)


# --- One run ---------------------------------------------------------------------------------------------------------------


def run(
    planned: Kill, *, seed: int, limit: float, script: Path | None = None, stopping: threading.Event | None = None
) -> Result | None:
    """Run to the end, or for `limit` seconds after the kill; `script` replaces the one of the cell.

    Return None where `stopping` is set before the end: then the run is killed and leaves nothing.
    """
    stopping = stopping or threading.Event()
    folder = Path(tempfile.mkdtemp(prefix=f"ending-{planned.number}-"))
    shutil.copyfile(script or SCRIPTS[planned.cell.script], folder / "train.py")
    began = time.monotonic()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            _command(planned.cell, folder),
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1]), "RALLYPOINT_HOME": str(folder)},
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            struck = _strike(planned, folder, process, began + limit, stopping)
            hung = not _ended(process, limit, stopping)
            stopped = stopping.is_set() and process.poll() is None
        finally:
            kill(tree(process.pid) if process.poll() is None else ())  # the workers have sessions of their own
            process.wait()
    if stopped:
        _remove(folder)
        return None
    seconds = time.monotonic() - began
    done = {match[0]: match for match in _last_round((folder / "output").read_text(errors="replace"))}
    wrong = "" if struck else "no worker was killed; "
    wrong += f"did not end in {limit:g} s" if hung else _judged(process.returncode, planned.cell, set(done), folder)
    if wrong:
        print(f"run {planned.number} {planned}: {wrong}; see {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    forks = sum(kind == "fork" for _, _, kind in done.values())
    return Result(seed=seed, number=planned.number, wrong=wrong, hung=hung, seconds=round(seconds, 1), forks=forks)


def _remove(folder: Path) -> None:
    """Delete the folder of a run that was killed, once none of its processes writes there any more."""
    until = time.monotonic() + _KILLED
    while processes(str(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _command(cell: Cell, folder: Path) -> list[str]:
    flags = ["--standalone", f"--nproc-per-node={cell.ranks}", "--max-restarts=3", "--exit-grace=0"]
    program = ["-m", "train"] if cell.way == "-m" else ["train.py"]
    return [sys.executable, "-m", "rallypoint.agent", "run", *flags, *program, str(folder)]


def _strike(planned: Kill, folder: Path, process: subprocess.Popen[bytes], deadline: float, stopping: threading.Event) -> bool:
    """Kill the worker that the plan names; return whether there was one."""
    trains = [folder / f"trains-0-{rank}" for rank in range(planned.cell.ranks)]

    def wait_until(predicate: object, until: float) -> None:
        while not predicate() and process.poll() is None and time.monotonic() < until:  # type: ignore[operator]
            if stopping.wait(0.02):
                return

    wait_until(lambda: all(file.exists() and file.read_text() for file in trains), deadline)
    if not planned.early:
        standing = planned.cell.ranks + 1
        wait_until(lambda: len(_forks(process.pid)) >= standing, min(deadline, time.monotonic() + _STANDBYS))
    stopping.wait(planned.pause)
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(trains[planned.rank].read_text()), signal.SIGKILL)
        return True
    return False


def _forks(agent: int) -> list[int]:
    """Return the zygote and its forks, which have its command line, as far as they are sessions of their own."""
    found = []
    for pid in tree(agent)[1:]:
        with contextlib.suppress(OSError):
            if "workers.zygote" in Path(f"/proc/{pid}/cmdline").read_text() and os.getsid(pid) == pid:
                found.append(pid)
    return found


def _ended(process: subprocess.Popen[bytes], limit: float, stopping: threading.Event) -> bool:
    until = time.monotonic() + limit
    while process.poll() is None and not stopping.wait(0.05):
        if time.monotonic() >= until:
            for pid in tree(process.pid):
                print(_threads(pid), flush=True)
            return False
    return True


def _threads(pid: int) -> str:
    """Return where the threads of a process wait in the kernel."""
    lines = [f"process {pid}"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            lines.append(f"  {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}")
    return "\n".join(lines)


def _last_round(output: str) -> list[tuple[str, str, str]]:
    found = _DONE.findall(output)
    last = max((int(round_) for _, round_, _ in found), default=0)
    return [match for match in found if int(match[1]) == last]


def _judged(code: int, cell: Cell, done: set[str], folder: Path) -> str:
    if code != 0:
        return f"exited with code {code}"
    missing = {str(rank) for rank in range(cell.ranks)} - done
    if missing:
        return f"ended, but ranks {sorted(missing)} are not done"
    left = processes(str(folder))
    return f"left processes: {[process.command for process in left]}" if left else ""


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Have processes that do nothing but use a core; each ends with this one."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    started = [subprocess.Popen([sys.executable, "-c", loop], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


# --- All runs --------------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Kill; return 1 when a run did not end, or ended otherwise, and 130 when interrupted."""
    args = _arguments(argv)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    planned = kills_of(seed, args.kills)
    results = {result.number: result for result in _known(args.results) if result.seed == seed}
    stopping = threading.Event()
    try:
        for machine in ("idle", "loaded") if args.machine == "both" else (args.machine,):
            todo = [one for one in planned if one.cell.machine == machine and one.number not in results]
            for result in _run_all(todo, args, seed, stopping):
                results[result.number] = result
                _note(args.results, result)
                bad = sum(bool(known.wrong) for known in results.values())
                print(f"{len(results)} of {len(planned)} runs, {bad} bad; the last took {result.seconds:g} s", flush=True)
    except KeyboardInterrupt:
        print("interrupted; all runs in progress were ended", flush=True)
    print(table(planned, results), f"seed {seed}", sep="\n", flush=True)
    return 130 if stopping.is_set() else int(any(result.wrong for result in results.values()))


def _run_all(todo: Sequence[Kill], args: argparse.Namespace, seed: int, stopping: threading.Event) -> Iterator[Result]:
    """Yield the results of runs on one machine as they end; an interrupt sets `stopping` and ends the runs in progress."""
    loaded = bool(todo) and todo[0].cell.machine == "loaded"
    until = time.monotonic() + 60 * args.minutes

    def in_time(one: Kill) -> Result | None:
        if stopping.is_set() or time.monotonic() >= until:
            return None
        return run(one, seed=seed, limit=args.limit, script=args.script, stopping=stopping)

    with busy(BUSY if loaded else 0), ThreadPool(AT_ONCE if loaded else 1) as pool:
        try:
            yield from filter(None, pool.imap_unordered(in_time, todo))
        except BaseException:
            stopping.set()
            pool.close()
            pool.join()
            raise


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.endings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="runs, of which each loses one worker (200)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="repeats the choices of an earlier run")
    parser.add_argument("--machine", choices=("idle", "loaded", "both"), default="both", help="only these runs (both)")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="begin no run after so long")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a run did not end (240)")
    parser.add_argument("--results", type=Path, help="file of results, from which a later call goes on")
    parser.add_argument("--script", type=Path, help="replaces the scripts that are trained")
    return parser.parse_args(argv)


def _known(file: Path | None) -> Iterable[Result]:
    if file is None or not file.exists():
        return ()
    return [Result(**json.loads(line)) for line in file.read_text().splitlines()]


def _note(file: Path | None, result: Result) -> None:
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")


def table(planned: Iterable[Kill], results: Mapping[int, Result]) -> str:
    """Return a Markdown table with a line for each cell, and one for all."""
    lines = [
        "| machine | script | ranks | started as | runs | did not end | ended otherwise | ranks that were forks |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    found = [(one.cell, results[one.number]) for one in planned if one.number in results]
    for cell in sorted(CELLS, key=lambda cell: (cell.machine, cell.script != "plain", cell.ranks, cell.way != "file")):
        own = [result for other, result in found if other == cell]
        if own:
            lines.append(_line(f"{cell.machine} | {cell.script} | {cell.ranks} | `{cell.way}`", own))
    return "\n".join([*lines, _line("all | | |", [result for _, result in found])])


def _line(name: str, results: Sequence[Result]) -> str:
    hung = sum(result.hung for result in results)
    otherwise = sum(bool(result.wrong) and not result.hung for result in results)
    return f"| {name} | {len(results)} | {hung} | {otherwise} | {sum(result.forks for result in results)} |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
