"""From the SIGKILL of a worker to the first optimizer step after recovery: ours against torchrun, on one script, in turn.

Cases:
    torchrun            `torchrun --standalone` with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which gloo needs to restart reliably
    torchrun-default    the same without that variable; a launch that hangs is ended after a limit and counted, and so are the
                        restarts that fail before they train
    ours                `rallypoint-agent run --standalone` with the same flags

Each launch trains, loses rank 1 `--kills` times, and ends. Launches of the cases alternate, so that a machine that drifts does
so for all. The figure is the time from the mark that the victim writes right before it dies to the last rank's first step.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.recovery_marks import PARTS, WORLD_SIZE, Recovery, log_times, median_parts, read_marks, recoveries
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("recovery_worker.py")
BIN = Path(sys.executable).parent
FLAGS = ("--standalone", "--nnodes=1", f"--nproc-per-node={WORLD_SIZE}", "--max-restarts=10")
_TORCHRUN_LOG = {"detect": "Sending process|failed \\(exitcode", "stop": "Rendezvous'ing", "rendezvous": "Rendezvous complete"}
_OUR_LOG = {"detect": "was ended by signal 9", "stop": "was stopped", "rendezvous": "coordinator: round:"}


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A case: which command, with which environment, and what its log says at the end of which part."""

    name: str
    command: tuple[str, ...]
    logged: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The command as a person would type it."""
        words = [f"{key}={value}" for key, value in self.env.items() if key != "LOGLEVEL"]
        return " ".join([*words, Path(self.command[0]).name, *self.command[1:], SCRIPT.name])


@dataclass
class Tally:
    """What the launches of one case gave so far."""

    found: list[Recovery] = field(default_factory=list)
    launches: int = 0
    hangs: int = 0


def launchers() -> tuple[Launcher, ...]:
    """Return the cases in the order in which they take turns."""
    torchrun = (str(BIN / "torchrun"), *FLAGS)
    ours = (str(BIN / "rallypoint-agent"), "run", *FLAGS)
    shared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    return (
        Launcher(name="torchrun", command=torchrun, logged=_TORCHRUN_LOG, env={shared: "1", "LOGLEVEL": "INFO"}),
        Launcher(name="torchrun-default", command=torchrun, logged=_TORCHRUN_LOG, env={"LOGLEVEL": "INFO"}),
        Launcher(name="ours", command=ours, logged=_OUR_LOG),
    )


def launch(launcher: Launcher, *, kills: int, limit: float, tally: Tally) -> None:
    """Run one launch to its end, or for `limit` seconds, and add what it gave."""
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    env = {**os.environ, **launcher.env, "BENCH_KILLS": str(kills), "BENCH_RUN": str(folder), "OMP_NUM_THREADS": "1"}
    log = folder / "launcher.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launcher.command, str(SCRIPT)], env=env, stdout=output, stderr=output, start_new_session=True
        )
        hung = not _ended(process, limit)
    tally.launches += 1
    tally.hangs += hung
    lines = log.read_text(errors="replace").splitlines()
    today = datetime.now().astimezone()
    logged = {part: log_times(lines, pattern, today=today) for part, pattern in launcher.logged.items()}
    found = recoveries(read_marks(folder), logged)
    if not hung and (process.returncode != 0 or len(found) != kills):
        tail = "\n".join(lines[-20:])
        message = f"{launcher.name} ended with {process.returncode} after {len(found)} of {kills} recoveries:\n{tail}"
        raise SystemExit(message)
    tally.found.extend(found)
    shutil.rmtree(folder)


def _ended(process: subprocess.Popen[bytes], limit: float) -> bool:
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill_tree(process.pid)
        process.wait()
        return False
    return True


def _kill_tree(root: int) -> None:
    """End a launcher and its workers, which have sessions of their own."""
    for pid in [root, *_descendants(root)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _descendants(root: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in (line.split() for line in listed.splitlines())}
    found, todo = [], [root]
    while todo:
        children = [pid for pid, parent in parents.items() if parent == todo[-1]]
        todo.pop()
        found.extend(children)
        todo.extend(children)
    return found


def measure(cases: Sequence[Launcher], *, n: int, kills: int, limit: float) -> dict[str, Tally]:
    """Take turns until each case has `n` recoveries; a case that only hangs stops after as many launches."""
    tallies = {launcher.name: Tally() for launcher in cases}
    while True:
        open_ = [c for c in cases if len(tallies[c.name].found) < n and tallies[c.name].hangs < n]
        if not open_:
            return tallies
        for launcher in open_:
            launch(launcher, kills=kills, limit=limit, tally=tallies[launcher.name])
            print(f"  {launcher.name}: {_so_far(tallies[launcher.name])}", file=sys.stderr)


def _so_far(tally: Tally) -> str:
    median = f", median {statistics.median(r.total for r in tally.found):.2f} s" if tally.found else ""
    return f"{len(tally.found)} recoveries in {tally.launches} launches{median}, {tally.hangs} hung"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=9, help="recoveries per case (default 9)")
    parser.add_argument("--kills", type=int, default=3, help="kills per launch (default 3)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a launch counts as hung (default 60)")
    parser.add_argument("--cases", default="", help="comma-separated names; all by default")
    options = parser.parse_args(argv)
    cases = [c for c in launchers() if not options.cases or c.name in options.cases.split(",")]
    tallies = measure(cases, n=options.n, kills=options.kills, limit=options.limit)
    results = [_case(launcher, tallies[launcher.name]) for launcher in cases]
    deliver("recovery", results, versions("torch", "airflow-provider-rallypoint"), options.json)
    print(_ratio(tallies))
    return 0


def _case(launcher: Launcher, tally: Tally) -> Case:
    return Case(
        name=launcher.name,
        command=launcher.shown,
        samples=tuple(r.total for r in tally.found),
        parts=median_parts(tally.found),
        counts={"launches": tally.launches, "hangs": tally.hangs, "failed": sum(r.failed for r in tally.found)},
    )


def _ratio(tallies: Mapping[str, Tally]) -> str:
    if not (tallies.get("torchrun") and tallies.get("ours")):
        return ""
    peer, ours = (statistics.median(r.total for r in tallies[name].found) for name in ("torchrun", "ours"))
    return f"ours takes {ours / peer:.2f} of torchrun's time (medians; parts: {', '.join(PARTS)})"


if __name__ == "__main__":
    sys.exit(main())
