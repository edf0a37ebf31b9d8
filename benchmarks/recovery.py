"""From the SIGKILL of a worker to the first optimizer step after recovery: ours beside the others, on one script, in turn.

Cases:
    torchrun            `torchrun --standalone` with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which gloo needs to restart reliably
    torchrun-default    the same without that variable, only when it is named: launches that hang are ended and counted, and so
                        are the restarts that fail before they train
    dlrover-run, ft_launcher    where the peers' environment is (`make peers`)
    ours                `rallypoint-agent run --standalone` with the same flags and the same script
    ours-meeting, ours-tls    with --tls: the same with an endpoint in the place of --standalone, and that with mutual TLS
    ours-script         the same with `--script FILE`, which must make the same marks

Each launch trains for a while, loses its last rank `--kills` times, and ends. Launches of the cases alternate, so that a
machine that drifts does so for all. A launch counts only when it ends with exit code 0: the others are reported as launches
that did not end or failed, and one of ours makes the benchmark end with 1. The figure is the time from the mark that the
victim writes right before it dies to the last rank's first step.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.processes import PEERS, kill, tree
from benchmarks.recovery_marks import PARTS, Recovery, log_times, median_parts, read_marks, recoveries
from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.backends.certificates import new_files

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("recovery_worker.py")
OURS = Path(sys.executable).with_name("rallypoint-agent")
_TORCHRUN_LOG = {"detect": "Sending process|failed \\(exitcode", "stop": "Rendezvous'ing", "rendezvous": "Rendezvous complete"}
_OUR_LOG = {"detect": "was killed by SIGKILL", "stop": "stopped by the agent", "rendezvous": "coordinator: round:"}
_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

#: Where agents with an endpoint meet.
_PORT = 29433

#: Seconds for which every launch trains before its first kill: what a launcher prepares beside the workers is ready by then.
_FIRST = 8.0


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A case: which command with which script and environment, and what its log says at the end of which part."""

    name: str
    command: tuple[str, ...]
    logged: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    script: Path = SCRIPT

    @property
    def shown(self) -> str:
        """The command as a person would type it."""
        words = [f"{key}={value}" for key, value in self.env.items() if key != "LOGLEVEL"]
        return " ".join([*words, Path(self.command[0]).name, *self.command[1:], self.script.name])


@dataclass
class Tally:
    """What the launches of one case gave so far."""

    found: list[Recovery] = field(default_factory=list)
    launches: int = 0
    not_ended: int = 0
    failed: int = 0


def meeting(flags: Sequence[str], folder: Path, port: int) -> list[Launcher]:
    """Return the cases whose agent has its coordinator at an address, without and with mutual TLS."""
    for name, text in new_files("bench", time.time()).items():
        (folder / name).write_text(text)
    places = ("--rdzv-backend=c10d", "--rdzv-id=bench", f"--rdzv-endpoint=127.0.0.1:{port}")
    plain = (str(OURS), "run", *(flag for flag in flags if flag != "--standalone"), "--exit-grace=0", *places)
    return [
        Launcher(name="ours-meeting", command=plain, logged=_OUR_LOG),
        Launcher(name="ours-tls", command=(*plain, f"--tls={folder}"), logged=_OUR_LOG),
    ]


def launchers(
    names: Sequence[str], *, workers: int, kills: int, script: Path | None, tls: Path | None = None
) -> list[Launcher]:
    """Return the cases of these names that can be run here, in the order in which they take turns; all where none is named."""
    flags = ("--standalone", "--nnodes=1", f"--nproc-per-node={workers}", f"--max-restarts={3 * kills + 10}")
    peers = PEERS if (PEERS / "torchrun").exists() else OURS.parent
    torchrun = (str(peers / "torchrun"), *flags)
    told = {"LOGLEVEL": "INFO"}
    # Without its grace: what would be ended by force is counted here.
    ours = (str(OURS), "run", *flags, "--exit-grace=0")
    known = [
        Launcher(name="torchrun", command=torchrun, logged=_TORCHRUN_LOG, env={_SHARED: "1", **told}),
        Launcher(name="dlrover-run", command=(str(peers / "dlrover-run"), *flags), logged=_TORCHRUN_LOG, env={_SHARED: "1"}),
        Launcher(
            name="ft_launcher",
            command=(str(peers / "ft_launcher"), *flags, "--ft-cfg-path=ft.yaml"),
            logged=_TORCHRUN_LOG,
            env={_SHARED: "1"},
        ),
        Launcher(name="ours", command=ours, logged=_OUR_LOG),
    ]
    if script is not None:
        known.append(Launcher(name="ours-script", command=ours, logged=_OUR_LOG, script=script.resolve()))
    if tls is not None:
        known += meeting(flags, tls, _PORT)
    if "torchrun-default" in names:
        known.append(Launcher(name="torchrun-default", command=torchrun, logged=_TORCHRUN_LOG, env=told))
    return [one for one in known if Path(one.command[0]).exists() and (not names or one.name in names)]


def launch(launcher: Launcher, *, workers: int, kills: int, limit: float, tally: Tally) -> None:
    """Run one launch to its end, or for `limit` seconds, and add what it gave."""
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    told = {"BENCH_KILLS": str(kills), "BENCH_RUN": str(folder), "BENCH_FIRST": str(_FIRST), "OMP_NUM_THREADS": "1"}
    (folder / "ft.yaml").write_text("fault_tolerance: {}\n")
    log = folder / "launcher.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launcher.command, str(launcher.script)],
            env={**os.environ, **launcher.env, **told},
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        hung = not _ended(process, limit)
    tally.launches += 1
    tally.not_ended += hung
    tally.failed += not hung and process.returncode != 0
    lines = log.read_text(errors="replace").splitlines()
    today = datetime.now().astimezone()
    logged = {part: log_times(lines, launcher.logged.get(part, "$^"), today=today) for part in PARTS[:3]}
    found = recoveries(read_marks(folder), logged, workers=workers)
    if not hung and (process.returncode != 0 or len(found) != kills):
        tail = "\n".join(lines[-20:])
        message = f"{launcher.name} ended with {process.returncode} after {len(found)} of {kills} recoveries:\n{tail}"
        print(message, file=sys.stderr)
    if not hung and process.returncode == 0:  # what never ends, or ends badly, has not recovered
        tally.found.extend(found)
    shutil.rmtree(folder)


def _ended(process: subprocess.Popen[bytes], limit: float) -> bool:
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        kill(tree(process.pid))  # the workers have sessions of their own
        process.wait()
        return False
    return True


def measure(cases: Sequence[Launcher], *, n: int, workers: int, kills: int, limit: float) -> dict[str, Tally]:
    """Take turns until each case has `n` recoveries, or has hung or failed as often."""
    tallies = {launcher.name: Tally() for launcher in cases}
    while True:
        open_ = [c for c in cases if len(tallies[c.name].found) < n and tallies[c.name].launches < n]
        if not open_:
            return tallies
        for launcher in open_:
            launch(launcher, workers=workers, kills=kills, limit=limit, tally=tallies[launcher.name])
            print(f"  {launcher.name}: {_so_far(tallies[launcher.name])}", file=sys.stderr)


def _so_far(tally: Tally) -> str:
    median = f", median {statistics.median(r.total for r in tally.found):.3f} s" if tally.found else ""
    bad = f"{tally.not_ended} did not end, {tally.failed} failed"
    return f"{len(tally.found)} recoveries in {tally.launches} launches{median}, {bad}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=9, help="recoveries per case (default 9)")
    parser.add_argument("--kills", type=int, default=3, help="kills per launch (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="workers per launch (default 2)")
    parser.add_argument("--limit", type=float, help="seconds until a launch did not end (default 120, and 3 for each kill)")
    parser.add_argument("--cases", default="", help="comma-separated names; all that can be run by default")
    parser.add_argument("--script", type=Path, help="one more case of ours, with this script")
    parser.add_argument("--tls", action="store_true", help="two more cases of ours: with an endpoint, and with mutual TLS")
    options = parser.parse_args(argv)
    names = [name for name in options.cases.split(",") if name]
    folder = Path(tempfile.mkdtemp(prefix="recovery-tls-")) if options.tls else None
    cases = launchers(names, workers=options.workers, kills=options.kills, script=options.script, tls=folder)
    limit = 120.0 + 3 * options.kills if options.limit is None else options.limit
    tallies = measure(cases, n=options.n, workers=options.workers, kills=options.kills, limit=limit)
    results = [_case(launcher, tallies[launcher.name]) for launcher in cases]
    deliver("recovery", results, versions("torch", "airflow-provider-rallypoint"), options.json)
    for line in _ratios(tallies):
        print(line)
    return int(any(tally.not_ended or tally.failed for name, tally in tallies.items() if name.startswith("ours")))


def _case(launcher: Launcher, tally: Tally) -> Case:
    totals = [r.total for r in tally.found]
    # In thousandths, since counts are whole numbers.
    p90 = round(1000 * statistics.quantiles(totals, n=10, method="inclusive")[-1]) if len(totals) > 1 else 0
    return Case(
        name=launcher.name,
        command=launcher.shown,
        samples=tuple(totals),
        parts=median_parts(tally.found),
        counts={
            "p90_ms": p90,
            "launches": tally.launches,
            "did not end": tally.not_ended,
            "failed launches": tally.failed,
            "failed rounds": sum(r.failed for r in tally.found),
        },
    )


def _ratios(tallies: Mapping[str, Tally]) -> list[str]:
    medians = {name: statistics.median(r.total for r in tally.found) for name, tally in tallies.items() if tally.found}
    ours = {name: median for name, median in medians.items() if name.startswith("ours")}
    peers = {name: median for name, median in medians.items() if name not in ours}
    return [
        f"{name} takes 1/{peer / own:.1f} of {other}'s time (medians)"
        for name, own in ours.items()
        for other, peer in peers.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
