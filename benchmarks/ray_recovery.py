"""Jobs on a real local Ray cluster beside the same jobs of the local backend, in turn.

One script (`recovery_worker.py`: DDP over gloo, one node with two workers) whose last rank ends itself with SIGKILL. Two times:

    recovery    from the SIGKILL to the first optimizer step of every rank of the next round
    submission  from the call of `submit` to the first optimizer step of the first round; the cluster and its ledger are warm

Launches alternate, so that a machine that drifts does so for all. On Ray, the processes of jobs have the niceness of the
raylet (where Rallypoint may lower it) or that of `--niceness`. With `--train` Ray Train runs the same script
on the same cluster, too (`TorchTrainer` with `FailureConfig`); its submission is measured from the start of the driver process.

With `--jobs N`, what N jobs on one cluster cost while nothing happens, and what their submission costs, is measured instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.ray_crowd import crowd
from benchmarks.recovery_marks import Recovery, median_parts, read_marks, recoveries
from rallypoint.backends.contract import Backend
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.cluster.priority import SETTING
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from tests.ray.clusters import RayCluster, ray_cluster

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("recovery_worker.py")

#: Seconds for one launch without its kills, and for each kill. Ray Train needs some ten seconds for one on a quiet machine.
_LIMIT, _KILL_LIMIT = 120.0, 60.0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=3, help="launches of each backend")
    parser.add_argument("--kills", type=int, default=4, help="kills of each launch")
    parser.add_argument("--train", action="store_true", help="measure Ray Train, too; needs ray[train]")
    parser.add_argument("--niceness", type=int, help="RAY_worker_niceness of the cluster; not set by default")
    parser.add_argument("--jobs", type=int, default=0, help="jobs at once, for the cost of jobs that wait")
    args = parser.parse_args()
    if args.jobs:
        return crowd(args.jobs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {} if args.niceness is None else {SETTING: str(args.niceness)}
        with ray_cluster(folder, nodes=1, variables=variables) as cluster:
            found = asyncio.run(_measure(folder, cluster, args.n, args.kills, train=args.train))
    for kind, (recovered, began) in found.items():
        for what, times in (("recovery", [each.total for each in recovered]), ("submission", began)):
            sys.stdout.write(f"{kind:9} {what:11} {_shown(times)}\n")
        parts = ", ".join(f"{part} {seconds:.3f}" for part, seconds in median_parts(recovered).items() if seconds)
        sys.stdout.write(f"{kind:9} {'parts':11} {parts}\n")
    return 0


def _shown(times: list[float]) -> str:
    if not times:
        return "no value"
    return f"{statistics.median(times):.3f} s [{min(times):.3f}..{max(times):.3f}] n={len(times)}"


async def _measure(
    folder: Path, cluster: RayCluster, launches: int, kills: int, *, train: bool
) -> dict[str, tuple[list[Recovery], list[float]]]:
    backends: dict[str, Backend] = {
        "local": LocalBackend(folder / "home"),
        "ray": RayBackend(Access(address=cluster.url, storage=str(folder / "ledger"))),
    }
    kinds = [*backends, *(["ray-train"] if train else [])]
    found: dict[str, tuple[list[Recovery], list[float]]] = {kind: ([], []) for kind in kinds}
    keeper, limit = await _keep_ledger(backends["ray"]), _LIMIT + kills * _KILL_LIMIT
    try:
        for launch in range(launches):
            for kind in kinds:
                run = folder / f"{kind}-{launch}"
                began = time.time()
                if kind in backends:
                    await _submit(backends[kind], run.name, run, kills)
                    await asyncio.wait_for(supervise(backends[kind], run.name, holder="benchmark"), limit)
                else:
                    await asyncio.wait_for(_ray_train(cluster.inner.address, run, kills), limit)
                marks = read_marks(run)
                first = max(mark.at for mark in marks if mark.mark == "stepped" and mark.attempt == 0)
                found[kind][0].extend(recoveries(marks, _NO_LOG, workers=2))
                found[kind][1].append(first - began)
                if kind in backends:
                    await delete(backends[kind], run.name, holder="benchmark", timeout=_LIMIT)
    finally:
        await delete(backends["ray"], keeper, holder="benchmark", timeout=_LIMIT)
        for backend in backends.values():
            await backend.close()
    return found


_NO_LOG: dict[str, tuple[float, ...]] = {"detect": (), "stop": (), "rendezvous": ()}


async def _ray_train(address: str, run: Path, kills: int) -> None:
    """Run the script under Ray Train."""
    await asyncio.to_thread(run.mkdir)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ray_train_driver", address, str(run)), env={**os.environ, **_variables(run, kills)}
    )
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    if code:
        raise RuntimeError(f"the driver of Ray Train exited with code {code}")


def _variables(run: Path, kills: int) -> dict[str, str]:
    return {"BENCH_KILLS": str(kills), "BENCH_RUN": str(run), "BENCH_FIRST": "4"}


async def _keep_ledger(backend: Backend) -> str:
    """Submit a job that no process supervises, so nothing of it runs: a ledger without jobs would end."""
    job = load_job({"name": "keeper", "entrypoint": {"command": ["true"]}}, based=False)
    await submit_or_adopt(backend, backend.plan(job), owner="benchmark")
    return job.name


async def _submit(backend: Backend, name: str, run: Path, kills: int) -> str:
    await asyncio.to_thread(run.mkdir)
    job = load_job(
        {
            "name": name,
            "entrypoint": {"command": [sys.executable, str(SCRIPT)]},
            "nproc_per_node": 2,
            "env": _variables(run, kills),
            "recovery": {"max_restarts": 100},
        },
        based=False,
    )
    await submit_or_adopt(backend, backend.plan(job), owner="benchmark")
    return name


if __name__ == "__main__":
    sys.exit(main())
