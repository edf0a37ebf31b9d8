"""A node joins a job that trains: how long the others stand still; ours beside torchrun's c10d rendezvous, interleaved.

N agents of this machine train plain DDP, `--nproc-per-node=1`, `--nnodes=1:N+1`. When they are at rest, one more agent is
started.

    standstill   between the last step of a rank of the N agents in the world of N and its first in the world of N + 1, read
                 from the times that each rank writes down; the longest of the N
    joined       from the start of the new agent until all N + 1 ranks have trained

Every repetition starts both launchers' jobs anew, one after the other. torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
as in `benchmarks.node_loss`. `ratio` is the median standstill under torchrun divided by ours.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.node_loss import Job, Launcher, launchers
from benchmarks.report import Case, arguments, deliver, versions

__all__ = ["Joined", "join", "main", "standstill"]

SCRIPT = Path(__file__).with_name("joining_worker.py")


@dataclass(frozen=True, kw_only=True)
class Joined:
    """One join: seconds that the others stood still, and seconds until all trained."""

    standstill: float
    joined: float


def join(launcher: Launcher, nodes: int) -> Joined:
    """Let one more agent join a job of `nodes`."""
    with tempfile.TemporaryDirectory(prefix="joining-") as name:
        folder = Path(name)
        job = Job(launcher, nodes + 1, folder, script=SCRIPT)
        try:
            job.start(nodes)
            job.calm()
            at = job.start_agent()
            joined = job.trains(nodes + 1, at) - at
            job.steps(nodes + 1, at)
            return Joined(standstill=standstill(folder, nodes), joined=joined)
        finally:
            job.end()


def standstill(folder: Path, nodes: int) -> float:
    """Return the longest pause of the agents 0 to `nodes` - 1 between the world of `nodes` and the next larger one."""
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for path in folder.glob("*.steps"):
        for line in path.read_text().splitlines():
            at, world, agent = line.split()
            number = int(agent)
            if int(world) == nodes:
                before[number] = max(float(at), before.get(number, 0.0))
            elif int(world) == nodes + 1:
                after[number] = min(float(at), after.get(number, float("inf")))
    return max(after[agent] - before[agent] for agent in range(nodes))


def _case(launcher: Launcher, nodes: int, found: Sequence[Joined]) -> list[Case]:
    command = f"{launcher.path.name} --nnodes=1:{nodes + 1}"
    parts = {"joined": statistics.median(one.joined for one in found)}
    samples = tuple(one.standstill for one in found)
    return [Case(name=f"{launcher.name} {nodes}+1 standstill", command=command, samples=samples, parts=parts)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=5, help="joins with each launcher (default 5)")
    parser.add_argument("--nodes", type=int, default=2, help="nodes that train before (default 2)")
    parser.add_argument("--ours", action="store_true", help="leave torchrun out")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # whatever was started is ended, too
    chosen = [one for one in launchers() if one.name == "ours" or (one.name == "torchrun" and not options.ours)]
    found: dict[str, list[Joined]] = {one.name: [] for one in chosen}
    for number in range(options.n):
        for launcher in chosen:
            latest = join(launcher, options.nodes)
            found[launcher.name].append(latest)
            told = f"standstill {latest.standstill:.3f} s, joined after {latest.joined:.3f} s"
            print(f"  {launcher.name}, join {number + 1}: {told}", file=sys.stderr)
    cases = [case for one in chosen for case in _case(one, options.nodes, found[one.name])]
    deliver("joining", cases, versions("torch", "airflow-provider-rallypoint"), options.json)
    medians = {name: statistics.median(one.standstill for one in joins) for name, joins in found.items()}
    if "torchrun" in medians:
        print(f"ratio: {medians['torchrun'] / medians['ours']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
