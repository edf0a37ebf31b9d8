"""What a launcher costs by itself: at rest, at `--help`, and for a script that does nothing; ours beside the others.

At rest two workers sleep: those of ours and of torchrun for a minute (`--seconds`), those of the others for `_OTHERS` seconds.
All processes of a launcher but its workers count: the agent, and whatever it starts beside them. `own rss` is the launcher's
first process alone; `all pss` counts pages that processes share once. Start-ups take turns; `cpu` is how many seconds of a core
they took, workers included. The rests run one after another, so that nobody shares pages with another launcher.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import PEERS, cpu_seconds, kill, memory, tree
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["main"]

WORKERS = 2

#: Whose figures are compared.
_CLAIMED = ("ours", "torchrun")
OURS = Path(sys.executable).with_name("rallypoint-agent")

#: A worker that is there for the whole measurement and uses nothing itself.
_SLEEPS = "import os, pathlib, sys, time\n(pathlib.Path(sys.argv[1]) / str(os.getpid())).touch()\ntime.sleep(3600)\n"

#: Seconds for which a launcher is looked at that nothing is claimed against.
_OTHERS = 20.0

#: Seconds that a launcher has to start its workers, and as many to come to rest once they run. It is at rest when for so many
#: seconds it starts and ends no process, and uses less than this share of a core.
_START, _SETTLE, _AT_REST = 120.0, 4.0, 0.05


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One command that starts workers; `path` is where it lies, `flags` what it needs to start two of them."""

    name: str
    path: Path
    flags: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The command as a person would type it."""
        return " ".join((self.path.name, *self.flags))


def launchers(names: Sequence[str]) -> list[Launcher]:
    """Return the launchers of these names that are installed, all of them where no name is given."""
    flags = ("--standalone", "--nnodes=1", f"--nproc-per-node={WORKERS}")
    known = [
        Launcher(name="ours", path=OURS, flags=("run", *flags)),
        Launcher(name="torchrun", path=PEERS / "torchrun", flags=flags),
        Launcher(name="dlrover-run", path=PEERS / "dlrover-run", flags=flags),
        Launcher(name="ft_launcher", path=PEERS / "ft_launcher", flags=(*flags, "--ft-cfg-path=ft.yaml")),
    ]
    return [one for one in known if one.path.exists() and (not names or one.name in names)]


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What a launcher costs while its workers sleep: CPU in percent of a core, memory in MB, and how many processes it has."""

    cpu: float
    own_rss: float
    all_pss: float
    processes: int


def rest(launcher: Launcher, folder: Path, seconds: float) -> Rest:
    """Let a launcher's workers sleep and look at it for a while."""
    started = folder / f"{launcher.name}-started"
    started.mkdir()
    script = folder / "sleeps.py"
    script.write_text(_SLEEPS)
    process = _popen(launcher, folder, str(script), str(started))
    try:
        _until(lambda: len(list(started.iterdir())) == WORKERS, process)
        own = _settled(process.pid, started)
        before, began = cpu_seconds(own), time.monotonic()
        time.sleep(seconds)
        used = cpu_seconds(own) - before
        return Rest(
            cpu=100 * used / (time.monotonic() - began),
            own_rss=memory([process.pid], "Rss"),
            all_pss=memory(own, "Pss"),
            processes=len(own),
        )
    finally:
        kill(tree(process.pid))
        process.wait()


def _settled(root: int, started: Path) -> list[int]:
    """Return a launcher's processes without its workers, once they have come to rest: they import much at first."""
    give_up = time.monotonic() + _START
    while True:
        workers = {pid for path in started.iterdir() for pid in tree(int(path.name))}
        own = [pid for pid in tree(root) if pid not in workers]
        before = cpu_seconds(own)
        time.sleep(_SETTLE)
        same = set(tree(root)) - workers == set(own)
        if (same and cpu_seconds(own) - before < _AT_REST * _SETTLE) or time.monotonic() > give_up:
            return own


def _popen(launcher: Launcher, folder: Path, *args: str) -> subprocess.Popen[bytes]:
    (folder / "ft.yaml").write_text("fault_tolerance: {}\n")
    with (folder / f"{launcher.name}.log").open("ab") as log:
        command = [str(launcher.path), *launcher.flags, *args]
        return subprocess.Popen(command, cwd=folder, env=_env(launcher), stdout=log, stderr=log, start_new_session=True)


def _env(launcher: Launcher) -> dict[str, str]:
    """The launcher's own commands come first: dlrover-run and its like start others by name."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return {**env, "PATH": f"{launcher.path.parent}{os.pathsep}{env.get('PATH', '')}", "OMP_NUM_THREADS": "1"}


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} did not start its workers (exit code {process.returncode})")
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Took:
    """What a command took from start to end: seconds, and seconds of a core of all processes that it has waited for."""

    seconds: float
    cpu: float


def took(launcher: Launcher, folder: Path, *words: str) -> Took:
    """Run a command to its end."""
    began, before = time.monotonic(), _cpu_of_the_dead()
    with (folder / f"{launcher.name}.log").open("ab") as log:
        subprocess.run(
            [str(launcher.path), *words], cwd=folder, env=_env(launcher), stdout=log, stderr=log, check=True, timeout=_START
        )
    return Took(seconds=time.monotonic() - began, cpu=_cpu_of_the_dead() - before)


def _cpu_of_the_dead() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(found: Sequence[Launcher], *, n: int, seconds: float, folder: Path) -> list[Case]:
    """Return the cases: starts in turn, then each at rest."""
    (folder / "noop.py").write_text("")
    (folder / "ft.yaml").write_text("fault_tolerance: {}\n")
    helps: dict[str, list[Took]] = {one.name: [] for one in found}
    noops: dict[str, list[Took]] = {one.name: [] for one in found}
    for turn in range(n + 1):
        for one in found:
            first = (*one.flags[: 1 if one.name == "ours" else 0], "--help")
            asked, launched = took(one, folder, *first), took(one, folder, *one.flags, "noop.py")
            if turn:  # the first of each reads its files from the disk
                helps[one.name].append(asked)
                noops[one.name].append(launched)
        print(f"  turn {turn} of {n}", file=sys.stderr)
    cases = [_start(f"{o.name} --help", f"{o.path.name} --help", helps[o.name]) for o in found]
    cases += [_start(f"{o.name} no-op", f"{o.shown} noop.py", noops[o.name]) for o in found]
    for one in found:
        cases += _rest_cases(one, rest(one, folder, seconds if one.name in _CLAIMED else min(seconds, _OTHERS)))
    return cases


def _start(name: str, command: str, known: Sequence[Took]) -> Case:
    seconds, cpu = tuple(one.seconds for one in known), statistics.median(one.cpu for one in known)
    return Case(name=name, command=command, samples=seconds, parts={"cpu": cpu})


def _rest_cases(one: Launcher, found: Rest) -> list[Case]:
    counts = {"processes": found.processes}
    return [
        Case(name=f"{one.name} idle cpu", command=one.shown, samples=(found.cpu,), unit="%", counts=counts),
        Case(name=f"{one.name} own rss", command=one.shown, samples=(found.own_rss,), unit="MB"),
        Case(name=f"{one.name} all pss", command=one.shown, samples=(found.all_pss,), unit="MB", counts=counts),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=5, help="starts per launcher (default 5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is looked at while it rests (default 60)")
    parser.add_argument("--cases", default="", help="comma-separated names of launchers; all by default")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # whatever was started is ended, too
    found = launchers([name for name in options.cases.split(",") if name])
    with tempfile.TemporaryDirectory(prefix="agent-bench-") as folder:
        cases = measure(found, n=options.n, seconds=options.seconds, folder=Path(folder))
    deliver("agent", cases, versions("torch", "airflow-provider-rallypoint"), options.json)
    print(_ratios(cases))
    return 0


def _ratios(cases: Sequence[Case]) -> str:
    medians = {case.name: statistics.median(case.samples) for case in cases}
    lines = []
    for what in ("--help", "no-op", "idle cpu", "own rss"):
        peer, ours = medians.get(f"torchrun {what}"), medians.get(f"ours {what}")
        if peer and ours is not None:
            lines.append(f"{what}: ours is {ours / peer:.2f} of torchrun's")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
