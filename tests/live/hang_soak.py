"""A job that trains unquietly, and no hang: `python -m tests.live.hang_soak --minutes 60` says how many alarms there were.

A plain script with long first steps, evaluations, slow checkpoints and stalls of its data (tests/live/scripts/unquiet.py) runs
under two agents of two workers with `hang_detection: 1`. Now and then one of the agents, or the coordinator, is stopped for
a while. Whatever is called a hang then is a false alarm; a doubt is none.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState
from tests.live.agent_processes import Agents, agents

__all__ = ["main", "soak"]

SCRIPT = Path(__file__).parent / "scripts" / "unquiet.py"


def soak(job: Agents, *, seconds: float, seed: int) -> list[str]:
    """Let a job train for so long; return what was called a hang, and what else went wrong."""
    chance = random.Random(seed)
    job.write_plan(
        entrypoint=str(SCRIPT),
        args=(str(job.work), str(seed)),
        min_nodes=2,
        max_nodes=2,
        report_interval=1.0,
        hang_downtime=120.0,
        hang_detection=1,
        warmup_grace=300.0,
    )
    processes = [job.coordinator(), job.node(0), job.node(1)]
    job.drain()
    until = time.monotonic() + seconds
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        time.sleep(chance.uniform(5.0, 30.0))
        _stop(chance.choice(processes), chance.uniform(0.5, 12.0))
    ended = [str(process.args) for process in processes if process.poll() is not None]
    job.finish()
    (job.work / "enough").touch()
    for process in processes:
        process.wait()
    status = job.status()
    assert status is not None
    alarms = [incident.reason for incident in status.incidents if incident.cause is Cause.HANG]
    others = [incident.reason for incident in status.incidents if incident.cause is not Cause.HANG]
    failed = [] if status.state is JobState.SUCCEEDED else [f"the job ended as {status.state.value}"]
    return alarms + others + failed + [f"ended before its time: {name}" for name in ended]


def _stop(process: subprocess.Popen[str], seconds: float) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process.pid, signal.SIGCONT)


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, and say what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens (default 0)")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="hang-soak-", ignore_cleanup_errors=True) as folder,
        agents(Path(folder), torch=True) as job,
    ):
        wrong = soak(job, seconds=60 * options.minutes, seed=options.seed)
        steps, changes = (job.work / "changes").read_text().split()
    print(f"{options.minutes:g} minutes, {steps} steps, {changes} changes of phase: {len(wrong)} false alarms")
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
