"""A whole node is lost, and another one comes: how long the rest does not train; ours beside torchrun with defaults and tuned.

N agents of this machine, `--nproc-per-node=1`, `--nnodes=1:N`; the first one hosts the rendezvous and stays. In each turn

    shrink   the agent that came last is killed with all its processes: until the last survivor's first step without it;
             `known`: until everyone was told to regroup; `cpu`: seconds of a core that all survivors together used meanwhile,
             which is the part that says little about the machine's other work
    grow     a new agent is started: until the last rank's first step in the larger world, its start and its import of torch
             included; `in the world`: from when the coordinator heard it first until the round with it was closed
    silent   the agent that came last is stopped (SIGSTOP) with all its processes: until the others' first step; `known`: until
             the coordinator gave it up. Ours alone: under torchrun the others wait in their collective for who stopped,
             and with its best tuning had not trained again after 240 s

`in the world` and `known` are read from our coordinator's own story; torchrun tells neither. torchrun runs with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its restarts hang (benchmarks/README.md). Its defaults take minutes for each
turn, so they take part with the fewest nodes only, unless `--defaults-everywhere` is given.

Before each disturbance the agents' own processes come to rest (zygotes and standbys get ready), however long that takes on this
machine: what is measured is a job that trains, not one that starts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import PEERS, cpu_seconds, descendants, kill, tree
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("node_loss_worker.py")
OURS = Path(sys.executable).with_name("rallypoint-agent")
SECRET = "a secret of the benchmark"
_TUNED = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"

#: Seconds that any step may take.
_LIMIT = 240.0

#: Seconds for which a job is looked at to see whether it is at rest, the share of a core that all that is no worker may use
#: then, and seconds after which it is disturbed whether it is or not.
_LOOK, _REST, _LONGEST_CALM = 1.0, 0.1, 60.0


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A case: which command with which flags, how often it is measured, and whether it tells its own story."""

    name: str
    path: Path
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    tells: bool = False


def launchers() -> list[Launcher]:
    """Return the cases."""
    shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    peers = PEERS if (PEERS / "torchrun").exists() else OURS.parent
    return [
        Launcher(name="ours", path=OURS, flags=("run",), env={"RALLYPOINT_SECRET": SECRET}, tells=True),
        Launcher(name="torchrun-tuned", path=peers / "torchrun", flags=(_TUNED,), env=shared),
        Launcher(name="torchrun", path=peers / "torchrun", env=shared),
    ]


class Job:
    """N agents of one launcher, and what their workers wrote down."""

    def __init__(self, launcher: Launcher, nodes: int, folder: Path, *, script: Path = SCRIPT) -> None:
        self._launcher, self._nodes, self._folder, self._script = launcher, nodes, folder, script
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._agents: list[subprocess.Popen[bytes]] = []
        self._disturbed: set[int] = set()

    @property
    def tells(self) -> bool:
        """Whether the launcher tells its own story."""
        return self._launcher.tells

    def start_agent(self) -> float:
        """Start one more agent; return when."""
        one = self._launcher
        flags = [f"--nnodes=1:{self._nodes}", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d"]
        flags += [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bench", "--local-addr=127.0.0.1"]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env |= {**one.env, "BENCH_RUN": str(self._folder), "BENCH_AGENT": str(len(self._agents)), "OMP_NUM_THREADS": "1"}
        at = time.time()
        with (self._folder / f"agent-{at}.log").open("wb") as log:
            command = [str(one.path), *one.flags, *flags, str(self._script)]
            self._agents.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True, cwd=self._folder)
            )
        return at

    def start(self, nodes: int = 0) -> None:
        """Start `nodes` agents (0: all), the one that hosts the rendezvous first, and wait until they train."""
        nodes = nodes or self._nodes
        at = self.start_agent()
        self._until(self._hosted, "the rendezvous is open")
        while len(self._agents) < nodes:
            self.start_agent()
        self.trains(nodes, at)

    def _hosted(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def trains(self, world: int, since: float) -> float:
        """Wait until every rank of a world of this size has done its first step, after `since`; return when the last had."""
        return self._until(lambda: self._trained(world, since), f"{world} nodes train")

    def steps(self, agents: int, since: float) -> None:
        """Wait until each of the first `agents` agents has written down a step after `since` in the present world."""
        present = {str(number) for number in range(agents)}

        def stepped() -> bool:
            lines = [line.split() for path in self._folder.glob("*.steps") for line in path.read_text().splitlines()]
            return present <= {one[2] for one in lines if len(one) == 3 and float(one[0]) > since and int(one[1]) == agents}

        self._until(stepped, f"{agents} agents step")

    def calm(self) -> None:
        """Wait until nothing but the training is going on."""
        give_up = time.monotonic() + _LONGEST_CALM
        while time.monotonic() < give_up:
            own = [pid for agent in self._agents for pid in tree(agent.pid) if pid not in self._workers()]
            before = cpu_seconds(own)
            time.sleep(_LOOK)
            known = {pid for agent in self._agents for pid in tree(agent.pid)}
            if known == set(own) | (known & self._workers()) and cpu_seconds(own) - before < _REST * _LOOK:
                return

    def used(self) -> dict[int, float]:
        """Return the CPU seconds of every process that is there, those of the agent that came last left out."""
        return {pid: cpu_seconds([pid]) for agent in self._agents[:-1] for pid in tree(agent.pid)}

    def _workers(self) -> set[int]:
        """Return the processes that train, and theirs."""
        pids = {int(path.stem.rpartition("-")[2]) for path in self._folder.glob("*.json")}
        return pids | {below for pid in pids for below in descendants(pid)}

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a step of the measurement; raises `SystemExit` with its name and the agents' last words."""
        deadline = time.monotonic() + _LIMIT
        while not (found := condition()):
            gone = [agent for agent in self._agents if agent.pid not in self._disturbed and agent.poll() is not None]
            if gone or time.monotonic() > deadline:
                why = f"an agent ended with {gone[0].returncode}" if gone else f"not so after {_LIMIT:g} s"
                raise SystemExit(f"{self._launcher.name}, {self._nodes} nodes: {what}: {why}\n{self._last_words()}")
            time.sleep(0.01)
        return found

    def _last_words(self) -> str:
        logs = sorted(self._folder.glob("agent-*.log"))
        return "\n".join(f"{path.name}: ... {path.read_text(errors='replace')[-1500:]}" for path in logs)

    def _trained(self, world: int, since: float) -> float | None:
        first: dict[int, float] = {}
        for path in self._folder.glob("*.json"):
            try:
                mark = json.loads(path.read_text())
            except (OSError, ValueError):  # it is being written
                continue
            if mark["world"] == world and mark["at"] > since:
                first[mark["rank"]] = max(mark["at"], first.get(mark["rank"], 0.0))
        return max(first.values()) if len(first) == world else None

    def disturb_last(self, number: int) -> float:
        """Send a signal to all processes of the agent that came last; return when."""
        pids = tree(self._agents[-1].pid)
        self._disturbed.add(self._agents[-1].pid)
        at = time.time()
        kill(pids, number)
        return at

    def forget_last(self) -> None:
        """End what is left of the agent that came last."""
        agent = self._agents.pop()
        kill(tree(agent.pid))
        agent.wait()

    def told(self, kind: str, since: float) -> float | None:
        """Return when our coordinator noted something of this kind after `since`, None where it did not or cannot tell."""
        if not self._launcher.tells:
            return None
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/v1/status", headers={"X-Rallypoint-Token": SECRET})
        with urllib.request.urlopen(request, timeout=_LIMIT) as answer:  # noqa: S310
            events: list[dict[str, Any]] = json.load(answer)["events"]
        return next((event["at"] for event in events if event["kind"] == kind and event["at"] > since), None)

    def end(self) -> None:
        """End everything."""
        while self._agents:
            self.forget_last()


def turn(job: Job, nodes: int, found: dict[str, list[float]], *, last: bool) -> None:
    """Disturb a job that trains in every way, once each, and add what that took; after the `last` nobody trains any more."""
    job.calm()
    before = job.used()
    at = job.disturb_last(signal.SIGKILL)
    _note(found, "shrink", job.trains(nodes - 1, at) - at)
    _note(found, "shrink: cpu", sum(used - before.get(pid, 0.0) for pid, used in job.used().items()))
    _note(found, "shrink: known", job.told("regroup", at), at)
    job.forget_last()
    job.calm()
    at = job.start_agent()
    _note(found, "grow", job.trains(nodes, at) - at)
    joined = job.told("regroup", at)
    if joined is not None:
        _note(found, "grow: in the world", job.told("round", joined), joined)
    if not job.tells:
        return
    job.calm()
    at = job.disturb_last(signal.SIGSTOP)
    _note(found, "silent", job.trains(nodes - 1, at) - at)
    _note(found, "silent: known", job.told("regroup", at), at)
    job.forget_last()
    if not last:
        job.trains(nodes, job.start_agent())


def _note(found: dict[str, list[float]], what: str, value: float | None, since: float = 0.0) -> None:
    if value is not None:
        found.setdefault(what, []).append(value - since)


def measure(launcher: Launcher, nodes: int, n: int) -> list[Case]:
    """Let one job be disturbed `n` times."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="node-loss-") as folder:
        job = Job(launcher, nodes, Path(folder))
        try:
            job.start()
            for number in range(n):
                turn(job, nodes, found, last=number == n - 1)
                latest = ", ".join(f"{what} {values[-1]:.3f} s" for what, values in found.items())
                print(f"  {launcher.name}, {nodes} nodes, turn {number + 1}: {latest}", file=sys.stderr)
        finally:
            job.end()
    return [
        Case(name=f"{launcher.name} {nodes} {what}", command=f"{launcher.path.name} --nnodes=1:{nodes}", samples=tuple(values))
        for what, values in found.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=3, help="turns of ours (default 3)")
    parser.add_argument("--peers", type=int, default=1, help="turns of each case of torchrun (default 1); 0 for none")
    parser.add_argument("--nodes", default="2,4,8", help="how many nodes (default %(default)s)")
    parser.add_argument("--defaults-everywhere", action="store_true", help="torchrun's defaults with more than the fewest, too")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # whatever was started is ended, too
    cases = []
    counts = [int(count) for count in options.nodes.split(",")]
    for nodes in counts:
        for launcher in launchers():
            turns = options.n if launcher.tells else options.peers
            slow = launcher.name == "torchrun" and nodes != min(counts) and not options.defaults_everywhere
            if turns and launcher.path.exists() and not slow:
                cases += measure(launcher, nodes, turns)
    deliver("node_loss", cases, versions("torch", "airflow-provider-rallypoint"), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
