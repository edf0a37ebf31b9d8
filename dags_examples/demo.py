"""`make demo`: an Airflow DAG trains through the kill of one of its workers and ends with the same weights, bit for bit.

All files are in `.demo/`, which each demo creates anew: Airflow's database and logs, the state of the jobs, the checkpoints,
and the picture. The demo leaves no process running.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from dags_examples.demo_run import DAG_ID, STEPS, DemoError, Order, Outcome, end_jobs, run_dag
from dags_examples.timeline import draw, tell

ROOT = Path(__file__).parents[1]
DEMO = ROOT / ".demo"
ENOUGH = 0.95

#: Progress is published once a second, so this is seen when the training is about half-way.
KILL_AT = STEPS * 2 // 5


def main() -> int:
    """Run the demo; return 0 when both runs reach the accuracy with equal weights, 1 otherwise."""
    argparse.ArgumentParser(prog="python -m dags_examples.demo", description=__doc__).parse_args()
    began = time.monotonic()
    try:
        calm, disturbed = asyncio.run(both(prepare()))
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it running
        asyncio.run(end_all())
    good = report(calm, disturbed)
    print(f"\n{time.monotonic() - began:.0f} s in all.")
    return 0 if good else 1


def prepare() -> dict[str, str]:
    """Create `.demo/` with a new Airflow database; return the environment for Airflow."""
    asyncio.run(end_all())  # of a demo that was itself killed
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "RALLYPOINT_"))}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(DEMO / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    say("Creating an Airflow database in .demo/")
    log = DEMO / "airflow-db.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
    if code != 0:
        raise DemoError(f"airflow db migrate ended with exit code {code}; see {log}")
    return environment


async def both(environment: dict[str, str]) -> tuple[Outcome, Outcome]:
    """Run the DAG without and with a kill."""
    say(f"1. The DAG {DAG_ID} trains {STEPS} steps on 2 nodes with 2 processes each, without a fault")
    calm = await run_dag(Order(title="undisturbed", folder=DEMO / "undisturbed", environment=environment, kill_at=None))
    say("2. The same DAG runs again; half-way the demo kills one worker with SIGKILL")
    order = Order(title="one worker killed", folder=DEMO / "killed", environment=environment, kill_at=KILL_AT)
    return calm, await run_dag(order)


async def end_all() -> None:
    """End the jobs of all runs."""
    for folder in DEMO.glob("*/jobs"):
        await end_jobs(folder)


def report(calm: Outcome, disturbed: Outcome) -> bool:
    """Print and draw both runs; return whether their weights are equal and accurate."""
    same = calm.digest == disturbed.digest
    accurate = min(calm.accuracy, disturbed.accuracy) >= ENOUGH
    picture = DEMO / "timeline.png"
    verdict = "equal weights in both runs" if same else "DIFFERENT WEIGHTS"
    draw([calm.run, disturbed.run], picture, footer=f"{verdict}: SHA-256 {disturbed.digest}, accuracy {disturbed.accuracy:.1%}")
    say("Events of both runs")
    print(tell(calm.run), tell(disturbed.run), sep="\n\n")
    lost = "unknown" if disturbed.run.lost is None else f"{disturbed.run.lost:.1f} s"
    print(f"\n  lost       {lost} until the run reached the step of the kill again; {disturbed.steps_lost} steps trained twice")
    print(f"  accuracy   {calm.accuracy:.2%} without a fault, {disturbed.accuracy:.2%} with the kill (required: {ENOUGH:.0%})")
    print(f"  weights    SHA-256 {calm.digest} without a fault")
    print(f"             SHA-256 {disturbed.digest} with the kill")
    print(f"             {'both runs ended with the same weights, bit for bit' if same else 'THE WEIGHTS DIFFER'}")
    print(f"  picture    {picture}")
    return same and accurate


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
