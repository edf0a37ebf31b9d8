"""What it costs to be watched: a worker per step, a node's agent and the coordinator per report; beside the budget of each.

- `step`: our hook on the optimizer's step, called as torch calls it, in a process that the start-up module has prepared. It
  is what a script pays that knows nothing of us. `report_progress` is what one pays that reports its step itself, alone or
  with two metrics.
- `watch`: what an agent looks at for 8 workers with each of its reports (shared memory, /proc, logs), and what the coordinator
  makes of that report. Reports come once a second, so the time that they take together is the share of a core.

Times are of the processor that the process itself has used, so that others on the machine do not count.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.agent.node.health.pulses import Pulses
from rallypoint.agent.node.health.vitals import Vitals
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.workers.logs import RankLogs, written
from rallypoint.capabilities.base import coordinator_capabilities
from rallypoint.training import startup
from rallypoint.wire import env
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.progress import ProgressFile, life_offset

__all__ = ["main"]

WORKERS = 8

#: Calls of a measurement; what a loop around nothing takes is taken off.
_STEPS, _REPORTS = 200_000, 2_000

#: Where the pulse is in a life record (wire/progress.py).
_PULSE = 64

_WORKER = """
import json, sys, time
import torch
from torch.optim import optimizer
from rallypoint.training import report_progress
weight = torch.ones(1, requires_grad=True)
sgd = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
for _ in range(50):
    sgd.step()
hooks = list(optimizer._global_optimizer_post_hooks.values())
assert len(hooks) == 1, hooks
def per_call(call, count):
    began = time.process_time()
    for _ in range(count):
        pass
    empty = time.process_time() - began
    began = time.process_time()
    for _ in range(count):
        call()
    return max(0.0, time.process_time() - began - empty) / count
hook, arguments, words = hooks[0], (), {}
count = int(sys.argv[1])
step = per_call(lambda: hook(sgd, arguments, words), count)
nothing = per_call(lambda: None, count)
reported = per_call(lambda: report_progress(7), count // 10)
losses = [number / 7 for number in range(100)]
shown = per_call(lambda: report_progress(7, loss=losses[7], rate=0.1), count // 10)
print(json.dumps({"step": step - nothing, "report": reported, "metrics": shown}))
"""


def worker(folder: Path) -> dict[str, float]:
    """Return seconds per step, and per report of a script, of a process that the start-up module has prepared."""
    path = folder / "progress.bin"
    ProgressFile.create(path, 1)
    told = {
        env.PROGRESS_FILE: str(path),
        env.LIFE_OFFSET: str(life_offset(1, 0)),
        env.STACK_FILE: str(folder / "stacks.txt"),
        env.LOCAL_RANK: "0",
        "PYTHONPATH": os.pathsep.join((str(Path(startup.__file__).parent), str(Path(__file__).parents[1]))),
    }
    command = [sys.executable, "-c", _WORKER, str(_STEPS)]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _per_call(call: Callable[[int], object], count: int) -> float:
    began = time.process_time()
    for number in range(count):
        call(number)
    return (time.process_time() - began) / count


def agent(folder: Path) -> float:
    """Return seconds per look at 8 workers."""
    progress = ProgressFile.create(folder / "node.bin", WORKERS)
    logs = [RankLogs(out=folder / f"{n}.out", err=folder / f"{n}.err", error_file=folder / f"{n}.json") for n in range(WORKERS)]
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) for _ in range(WORKERS)]
    vitals, pulses = Vitals(), Pulses()

    beats = _beats(folder / "node.bin")

    def look(number: int) -> None:
        beats()
        for rank, process in enumerate(sleepers):
            progress.read(rank)
            life = progress.life(rank)
            vitals.look(rank, (process.pid,), number, time.monotonic())
            pulses.look(rank, progress.pulse(rank), life)
            written(logs[rank])
        pulses.learned(progress, range(WORKERS))

    try:
        return _per_call(look, _REPORTS)
    finally:
        for process in sleepers:
            process.kill()
            process.wait()


def _beats(path: Path) -> Callable[[], None]:
    """Return what shows a sign of life of each worker, as their own Python would."""
    with path.open("rb+") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    places = [life_offset(WORKERS, rank) + _PULSE for rank in range(WORKERS)]

    def beat() -> None:
        now = time.monotonic_ns()
        for place in places:
            struct.pack_into("<QQ", mapped, place, now, 1)

    return beat


def coordinator() -> float:
    """Return seconds per report of an agent with 8 workers, all of the core's work on it."""
    plan = Plan(name="job", role="r", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="train.py")
    registered = coordinator_capabilities(plan)
    state = rendezvous.new(Settings.from_plan(plan), job="job", uid="u", attempt=1, term=1, now=0.0, registered=registered)
    state = rendezvous.tick(rendezvous.receive(state, _report(0, AgentState.WAITING, 0), 0.0), 0.0)

    def hear(number: int) -> None:
        nonlocal state
        state = _heard(state, number)

    return _per_call(hear, _REPORTS)


def _heard(state: State, number: int) -> State:
    return rendezvous.receive(state, _report(number, AgentState.RUNNING, 1), float(number))


def _report(number: int, doing: AgentState, round_: int) -> AgentReport:
    workers = tuple(WorkerReport(local_rank=n, pid=100 + n, liveness=number, beat=number, quiet=0.1) for n in range(WORKERS))
    return AgentReport(
        job="job",
        fence=Fence(attempt=1, term=1, round=round_),
        node=0,
        incarnation=1,
        agent="a",
        host="h",
        local_world_size=WORKERS,
        store="h:1",
        state=doing,
        round=round_,
        workers=workers if round_ else (),
        sequence=number + 1,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=5, help="measurements of each (default 5)")
    options = parser.parse_args(argv)
    steps, reports, metrics, looks, hears = [], [], [], [], []
    for _ in range(options.n):
        with tempfile.TemporaryDirectory(prefix="watch-cost-") as folder:
            found = worker(Path(folder))
            steps.append(1e6 * found["step"])
            reports.append(1e6 * found["report"])
            metrics.append(1e6 * found["metrics"])
            looks.append(1e6 * agent(Path(folder)))
            hears.append(1e6 * coordinator())
    cases = [
        Case(name="step, by the hook", command="training/startup", samples=tuple(steps), unit="us"),
        Case(name="report_progress(step)", command="rallypoint.training.report_progress", samples=tuple(reports), unit="us"),
        Case(name="report_progress(step, loss=, rate=)", command="the same with metrics", samples=tuple(metrics), unit="us"),
        Case(name="agent, a report of 8 workers", command="agent/node", samples=tuple(looks), unit="us"),
        Case(name="coordinator, the same report", command="agent/rendezvous", samples=tuple(hears), unit="us"),
    ]
    deliver("watch_cost", cases, versions("torch", "airflow-provider-rallypoint"), options.json)
    share = sorted(a + b for a, b in zip(looks, hears, strict=True))[len(looks) // 2] / 1e6
    print(f"once a second: {share:.4%} of a core for {WORKERS} workers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
