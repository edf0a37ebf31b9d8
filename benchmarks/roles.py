"""Jobs with several roles on this machine: what they cost beside a job of one role.

    build       `JobBuilder().build()` of a job with 100 roles, in this process after its imports
    simple      from the SIGKILL of an instance of a simple role to the first line of its successor, warm
    one-role    from the SIGKILL of a worker to the first optimizer step of every rank, in a job of one role
    elastic     the same in an elastic role of a job with a simple role beside it, whose process must survive

`one-role` and `elastic` alternate, so that a machine that drifts does so for both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.recovery_marks import read_marks, recoveries
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.job.builder import JobBuilder

__all__ = ["build", "main"]

SCRIPT, INSTANCE = (Path(__file__).with_name(name) for name in ("recovery_worker.py", "roles_instance.py"))

#: Seconds for one launch.
_LIMIT = 120.0

_NO_LOG: dict[str, tuple[float, ...]] = {"detect": (), "stop": (), "rendezvous": ()}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=3, help="launches of each case")
    parser.add_argument("--kills", type=int, default=4, help="kills of each launch")
    args = parser.parse_args()
    found = {"build": [build(100) for _ in range(10)]}
    with tempfile.TemporaryDirectory() as name:
        found |= asyncio.run(_measure(Path(name), args.n, args.kills))
    for case, times in found.items():
        middle = statistics.median(times)
        sys.stdout.write(f"{case:9} {middle:.3f} s [{min(times):.3f}..{max(times):.3f}] n={len(times)}\n")
    ratio = statistics.median(found["elastic"]) / statistics.median(found["one-role"])
    sys.stdout.write(f"elastic / one-role {ratio:.2f}\n")
    return 0


def build(roles: int) -> float:
    """Return the CPU seconds in which a job of so many roles is built."""
    began = time.thread_time()
    builder = JobBuilder().node_num(roles).device_per_node(8).device_type("CPU").config({"lr": 1e-5})
    for number in range(roles):
        if number % 2:
            builder.role(f"role-{number}").train("pkg.train.run").nnodes(1).nproc_per_node(2)
        else:
            builder.role(f"role-{number}").run("pkg.serve.run").total(4).per_group(2).resource(cpu=1).env({"N": number})
    builder.build()
    return time.thread_time() - began


async def _measure(folder: Path, launches: int, kills: int) -> dict[str, list[float]]:
    backend = LocalBackend(folder / "home")
    found: dict[str, list[float]] = {"simple": [], "one-role": [], "elastic": []}
    try:
        for launch in range(launches):
            for case, times in found.items():
                run = folder / f"{case}-{launch}"
                await asyncio.to_thread(run.mkdir)
                job = load_job({"name": run.name, **_document(case, run, kills)}, based=False)
                await submit_or_adopt(backend, backend.plan(job), owner="benchmark")
                record = await asyncio.wait_for(supervise(backend, run.name, holder="benchmark"), _LIMIT)
                assert record is not None
                assert record.phase.value == "Succeeded", record.verdict
                times.extend(await asyncio.to_thread(_times, case, run))
                await delete(backend, run.name, holder="benchmark", timeout=_LIMIT)
    finally:
        await backend.close()
    return found


def _document(case: str, run: Path, kills: int) -> dict[str, Any]:
    variables = {"BENCH_KILLS": str(kills), "BENCH_RUN": str(run), "BENCH_FIRST": "4"}
    instance = {"launch": "simple", "entrypoint": str(INSTANCE), "env": variables}
    trainer = {"entrypoint": {"command": [sys.executable, str(SCRIPT)]}, "nproc_per_node": 2, "env": variables}
    recovery = {"recovery": {"max_restarts": 100, "node_replacements": 100}}
    if case == "simple":
        return {**recovery, "roles": {"rollout": instance}}
    if case == "one-role":
        return {**recovery, **trainer}
    server = {**instance, "driver": False, "env": {**variables, "BENCH_KILLS": "0"}}
    return {**recovery, "roles": {"trainer": trainer, "server": server}}


def _times(case: str, run: Path) -> list[float]:
    lines = [json.loads(line) for path in run.glob("instance.lines") for line in path.read_text().splitlines()]
    if case == "simple":
        return [after["at"] - killed["killed"] for killed, after in itertools.pairwise(lines) if killed["killed"]]
    assert len(lines) == (case == "elastic"), "the process of the other role must survive"
    return [each.total for each in recoveries(read_marks(run), _NO_LOG, workers=2)]


if __name__ == "__main__":
    sys.exit(main())
