"""The loss matrix: each machine of three dies at each moment of a job, whoever supervises it.

    python -m tests.cluster.loss_matrix [--cells a/training/process,b/...] [--jobs 4] [--seed 1] [--logs FOLDER]

The cells run on emulated clusters with the timings of real ones, each in a process of its own. Machine `a` has the supervisor's
pod where there is one, or else the coordinator, and a node; machine `b` has a node; `c` is the spare one. A cell is named
MACHINE/MOMENT/SUPERVISOR, and `--cells` takes parts of such names. Exit code 1: a cell went wrong; the exact order of events of
each that did is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import fnmatch
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rallypoint.backends.kubernetes.rbac import rbac
from tests.cluster.loss_cell import MOMENTS, SUPERVISORS, Cell, Result, Run
from tests.cluster.loss_hands import Emulated
from tests.cluster.sites import ClusterSite, emulated
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import running
from tests.live.light import without_torch

__all__ = ["CELLS", "NAMES", "grant", "main", "run_emulated"]

CELLS = tuple(
    Cell(machine=machine, moment=moment, supervisor=supervisor)
    for supervisor in SUPERVISORS
    for moment in MOMENTS
    for machine in "abc"
)

NAMES = ("node-a", "node-b", "node-c")

#: Seconds for one cell.
_LONGEST = 600.0


def main(argv: list[str] | None = None) -> int:
    """Run the cells that are asked for and print a row for each."""
    args = _arguments(argv)
    if args.one:
        return _one(args.one, args.logs)
    cells = [cell for cell in CELLS if any(fnmatch.fnmatch(cell.name, f"*{part}*") for part in args.cells.split(","))]
    if args.seed:
        random.Random(args.seed).shuffle(cells)
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda cell: _in_process(cell, args.logs), cells))
    bad = [result for result in found if result.wrong]
    print(_table(found))
    print(*_columns(found), sep="\n")
    for result in bad:
        print("\n".join(_story(result)))
    print(f"{len(found) - len(bad)} of {len(found)} cells hold, seed {args.seed}, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.loss_matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="", metavar="PARTS", help="parts of names, with commas between (default: all)")
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="cells at a time (default: 3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of the cells; 0: as listed (default: 1)")
    parser.add_argument("--logs", type=Path, default=None, metavar="FOLDER", help="keep everything that was written")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _in_process(cell: Cell, logs: Path | None) -> Result:
    words = [sys.executable, "-m", "tests.cluster.loss_matrix", "--one", cell.name, *(["--logs", str(logs)] if logs else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST, check=False)
    except subprocess.TimeoutExpired:
        result = Result(cell=cell.name, wrong=[f"the cell did not end within {_LONGEST:g} s"])
    else:
        result = _result(cell, done)
    print(_row(result), file=sys.stderr, flush=True)
    return result


def _result(cell: Cell, done: subprocess.CompletedProcess[str]) -> Result:
    try:
        return Result(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        why = f"the process of the cell ended with code {done.returncode}: {done.stderr.strip()[-2000:]}"
        return Result(cell=cell.name, wrong=[why])


def _one(name: str, logs: Path | None) -> int:
    cell = next(cell for cell in CELLS if cell.name == name)
    with tempfile.TemporaryDirectory(prefix="loss-") as made:
        folder = Path(made) if logs is None else logs / name.replace("/", "-")
        if logs is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        result = run_emulated(cell, folder)
    print(json.dumps(dataclasses.asdict(result)), flush=True)
    return 1 if result.wrong else 0


def run_emulated(cell: Cell, folder: Path, *, patience: float = 1.0) -> Result:
    """Run a cell on an emulated cluster of its own, whose clocks are those of a real one.

    `patience`: so many times the seconds that are allowed may pass, on a machine that has other work.
    """
    machines = tuple(NodeOptions(name=name, cpu="4") for name in NAMES)
    image = {"PYTHONPATH": without_torch(folder)}
    with running(Options(rbac=True, nodes=machines, image_env=image, speed=1.0)) as cluster:
        os.environ["no_proxy"] = "*"

        async def run() -> Result:
            made = emulated(cluster, folder, TRAIL=str(folder / "trail"))
            async with made.opened() as site:
                await grant(site)
                return await Run(cell, site, Emulated(cluster), NAMES, folder, patience=patience).run()

        return asyncio.run(run())


async def grant(site: ClusterSite) -> None:
    """Let the supervisor of a namespace look at machines, as `rallypoint manifests rbac --nodes` does."""
    for manifest in rbac(site.namespace, nodes=True):
        metadata = manifest["metadata"]
        if metadata.get("namespace") != site.namespace:
            where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            await site.ensure(f"/apis/rbac.authorization.k8s.io/v1{where}/{manifest['kind'].lower()}s", manifest)


# --- What is printed -------------------------------------------------------------------------------------------------------


def _row(result: Result) -> str:
    seconds = "-" if result.seconds is None else f"{result.seconds:.1f} s"
    verdict = "ok" if not result.wrong else f"WRONG: {result.wrong[0]}"
    return f"| {result.cell} | {seconds} | {result.what or '-'} | {verdict} |"


def _table(found: list[Result]) -> str:
    order = {cell.name: number for number, cell in enumerate(CELLS)}
    rows = [_row(result) for result in sorted(found, key=lambda result: order[result.cell])]
    return "\n".join(("| cell | after | what | verdict |", "|---|---|---|---|", *rows))


def _columns(found: list[Result]) -> Iterator[str]:
    """Yield the median and the worst time of each kind of supervisor."""
    for supervisor in SUPERVISORS:
        taken = [(r.seconds, r.cell) for r in found if r.seconds is not None and r.cell.endswith(f"/{supervisor}")]
        if taken:
            worst, cell = max(taken)
            median = statistics.median(seconds for seconds, _ in taken)
            yield f"{supervisor}: {len(taken)} cells, median {median:.1f} s, worst {worst:.1f} s ({cell})"


def _story(result: Result) -> list[str]:
    events: list[Any] = result.events
    return [
        f"\n{result.cell}",
        *(f"  wrong: {text}" for text in result.wrong),
        *(f"  {at:7.2f}  {text}" for at, text in events),
    ]


if __name__ == "__main__":
    sys.exit(main())
