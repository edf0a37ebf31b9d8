"""The same five hangs under each launcher: whether it finds them, and after how long; ours beside the others.

Two workers train with DDP over gloo; after a hundred steps rank 1 sleeps, is stopped, runs in a circle, leaves a collective
out, or ends with 0 while its sockets stay open. A hang counts as found when the first of the processes that would have waited
for ever is ended, by its launcher or by itself; after `--limit` seconds it counts as not found. Each launcher takes part as it
is, and with what it offers at its best: the time-out of the process group (the script's own, and a rank that waits raises), the
heartbeats of ft_launcher (five lines in the script), and a short `--hang-downtime` of ours. With `--hang-detection 2` alone
ours restarts for positive evidence only before half an hour is over: a rank that sleeps or runs in a circle may be at work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import PEERS, kill, tree
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("hangs_worker.py")
OURS = Path(sys.executable).with_name("rallypoint-agent")
WAYS = ("sleep", "stop", "busy", "skip", "exited")

#: Seconds that the others' detectors are set to at their best: as short as ours is after a hundred short steps.
_BEST = 5

#: Seconds until a script has hung.
_START = 240.0


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One way to run the script: the command, what its environment has, and what ft_launcher's file says."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    config: str = "fault_tolerance: {}\n"

    @property
    def shown(self) -> str:
        """The command as a person would type it."""
        return " ".join((*(f"{key}={value}" for key, value in self.env.items()), Path(self.command[0]).name, *self.command[1:]))


def launchers(names: Sequence[str]) -> list[Launcher]:
    """Return those that can be run here; all where none is named."""
    flags = ("--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=3")
    peers = PEERS if (PEERS / "torchrun").exists() else OURS.parent
    ft = (str(peers / "ft_launcher"), *flags, "--ft-cfg-path=ft.yaml")
    ours = (str(OURS), "run", *flags, "--hang-detection=2")
    timeout = {"BENCH_GROUP_TIMEOUT": str(_BEST)}
    beats = f"  initial_rank_heartbeat_timeout: 60\n  rank_heartbeat_timeout: {_BEST}\n  workload_check_interval: 1\n"
    known = [
        Launcher(name="ours", command=ours),
        Launcher(name="ours, hang_downtime", command=(*ours, f"--hang-downtime={_BEST / 60:.4f}")),
        Launcher(name="torchrun", command=(str(peers / "torchrun"), *flags)),
        Launcher(name="torchrun, group time-out", command=(str(peers / "torchrun"), *flags), env=timeout),
        Launcher(name="dlrover-run", command=(str(peers / "dlrover-run"), *flags)),
        Launcher(name="dlrover-run, group time-out", command=(str(peers / "dlrover-run"), *flags), env=timeout),
        Launcher(name="ft_launcher", command=ft),
        Launcher(name="ft_launcher, heartbeats", command=ft, env={"BENCH_HEARTBEAT": "1"}, config=f"fault_tolerance:\n{beats}"),
    ]
    return [one for one in known if Path(one.command[0]).exists() and (not names or one.name in names)]


def hang(launcher: Launcher, way: str, limit: float) -> float | None:
    """Return after how many seconds a hang was found, None where it was not; raises `SystemExit` where nothing hung."""
    folder = Path(tempfile.mkdtemp(prefix="hangs-"))
    (folder / "ft.yaml").write_text(launcher.config)
    path = f"{Path(launcher.command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, **launcher.env, "PATH": path, "OMP_NUM_THREADS": "1"}
    log = folder / "launcher.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launcher.command, str(SCRIPT), str(folder), way],
            env=env,
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return _found_after(folder, process, limit, log)
        finally:
            kill([*tree(process.pid), *_pids(folder)])
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _found_after(folder: Path, process: subprocess.Popen[bytes], limit: float, log: Path) -> float | None:
    until = time.monotonic() + _START
    while not (folder / "hung").exists():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{process.args!r} did not come to its hang:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)
    began = float((folder / "hung").read_text())
    # Of one that has left on its own nobody has to notice.
    waiting = [int((folder / "pid-0-0").read_text())]
    while time.time() < began + limit:
        if any(not Path(f"/proc/{pid}").exists() or _zombie(pid) for pid in waiting):
            return time.time() - began
        time.sleep(0.02)
    return None


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("pid-*") if path.read_text()]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=3, help="launches of each case and hang (default 3)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a hang counts as not found (default 60)")
    parser.add_argument("--jobs", type=int, default=2, help="launches side by side (default 2)")
    parser.add_argument("--cases", default="", help="semicolon-separated names; all that can be run by default")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"comma-separated, of {', '.join(WAYS)}")
    options = parser.parse_args(argv)
    found = launchers([name for name in options.cases.split(";") if name])
    ways = [way for way in options.ways.split(",") if way]
    turns = [(one, way) for _ in range(options.n) for way in ways for one in found]
    results: dict[tuple[str, str], list[float | None]] = {}
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for (one, way), took in zip(turns, pool.map(lambda turn: hang(turn[0], turn[1], options.limit), turns), strict=True):
            results.setdefault((one.name, way), []).append(took)
            print(f"  {one.name}, {way}: {'not found' if took is None else f'{took:.2f} s'}", file=sys.stderr)
    deliver("hangs", [_case(one, way, results) for way in ways for one in found], _versions(), options.json)
    return 0


def _versions() -> dict[str, str]:
    return versions("torch", "airflow-provider-rallypoint")


def _case(one: Launcher, way: str, results: Mapping[tuple[str, str], Sequence[float | None]]) -> Case:
    took = results[one.name, way]
    known = tuple(seconds for seconds in took if seconds is not None)
    return Case(
        name=f"{way}: {one.name}", command=one.shown, samples=known, counts={"launches": len(took), "found": len(known)}
    )


if __name__ == "__main__":
    sys.exit(main())
