"""Run the example DAG, observe its job through the backend, and kill one worker if requested."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dags_examples.timeline import Mark, Run, Sample, trace
from rallypoint.backends.contract import Backend
from rallypoint.backends.registry import open_backend
from rallypoint.backends.requests import delete
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["DAG_ID", "STEPS", "DemoError", "Order", "Outcome", "end_jobs", "run_dag"]

DAG_ID = "elastic_training_local"
DAG_FILE = Path(__file__).with_name("elastic_training_local.py")

#: Steps of the example's training.
STEPS = 300

#: The rank that is killed: the last one, on the second node.
VICTIM = 3

_LOOK = 0.05
_SAY = 2.5
_STEP_SECONDS = 0.02


class DemoError(Exception):
    """The demo failed; the text names the cause and the log file."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to run. `kill_at` is the step at which one worker is killed, None to leave the run alone."""

    title: str
    folder: Path
    environment: Mapping[str, str]
    kill_at: int | None

    @property
    def home(self) -> Path:
        """Folder of the job's state."""
        return self.folder / "jobs"

    @property
    def log(self) -> Path:
        """Log file of Airflow."""
        return self.folder / "airflow.log"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: its timeline, and what the script wrote as its result."""

    run: Run
    accuracy: float
    digest: str
    steps_lost: int


@dataclass
class _Watch:
    """Observations so far."""

    samples: list[Sample] = field(default_factory=list)
    killed: Mark | None = None
    said: float = 0.0


async def run_dag(order: Order) -> Outcome:
    """Run the DAG to its end while watching its job; raises `DemoError` when it does not succeed."""
    order.folder.mkdir(parents=True)
    backend = open_backend("local", home=order.home)
    watch = _Watch()
    with order.log.open("wb") as log:
        airflow = await asyncio.create_subprocess_exec(
            *_command(order), env={**order.environment, "RALLYPOINT_HOME": str(order.home)}, stdout=log, stderr=log
        )
        try:
            await _observe(backend, order, watch, airflow)
            return await _outcome(backend, order, watch, airflow.returncode)
        finally:
            if airflow.returncode is None:
                airflow.kill()
                await airflow.wait()
            await backend.close()


def _command(order: Order) -> list[str]:
    conf = json.dumps({"folder": str(order.folder / "checkpoints"), "step_seconds": _STEP_SECONDS})
    return [sys.executable, "-m", "airflow", "dags", "test", DAG_ID, "--dagfile-path", str(DAG_FILE), "--conf", conf]


async def _observe(backend: Backend, order: Order, watch: _Watch, airflow: asyncio.subprocess.Process) -> None:
    began = time.time()
    while airflow.returncode is None:
        names = await backend.names()
        status = await backend.status(names[0]) if names else None
        now = time.time()
        if status is not None:
            _take(status, watch)
            _disturb(status, order, watch)
        if now - watch.said >= _SAY:
            watch.said = now
            print(f"  {now - began:5.1f} s  {_where(status)}", flush=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(airflow.wait(), _LOOK)


def _take(status: JobStatus, watch: _Watch) -> None:
    step, at = status.progress.step, status.progress.at
    if step is None or (watch.samples and watch.samples[-1].at >= at):
        return
    # Until a new round makes its first step, the last round's step is still told.
    formed = max((event.at for event in status.events if event.kind == "round"), default=0.0)
    watch.samples.append(Sample(at=at, step=step, round=status.fence.round - (at < formed)))


def _disturb(status: JobStatus, order: Order, watch: _Watch) -> None:
    step = status.progress.step
    if order.kill_at is None or watch.killed is not None or step is None or step < order.kill_at:
        return
    victim = next((rank for rank in status.ranks if rank.rank == VICTIM), None)
    if victim is None:
        return
    os.kill(victim.pid, signal.SIGKILL)
    text = f"SIGKILL to rank {victim.rank} on node {victim.node} (process {victim.pid}) at step {step}"
    watch.killed = Mark(at=time.time(), kind="killed", text=text)
    print(f"  ---> {text}", flush=True)


def _where(status: JobStatus | None) -> str:
    if status is None:
        return "Airflow is starting"
    if status.state is not JobState.RUNNING:
        return (
            "the nodes are joining"
            if status.state is JobState.FORMING
            else f"training {status.state.value}; the Airflow task ends next"
        )
    world = f"round {status.fence.round} of {status.world_size} ranks"
    if all(rank.step is None for rank in status.ranks):  # the job's progress may still be that of the round before
        return f"{world}: workers are starting"
    return f"{world}: step {status.progress.step} of {STEPS}"


async def end_jobs(home: Path) -> None:
    """Delete the jobs that an interrupted or failed run left running; finished jobs keep their folders."""
    backend = open_backend("local", home=home)
    for name in await backend.names():
        stored = await backend.load(name)
        if stored is not None and not stored.record.released:
            await delete(backend, name, holder="demo")
    await backend.close()


async def _outcome(backend: Backend, order: Order, watch: _Watch, code: int | None) -> Outcome:
    names = await backend.names()
    stored = await backend.load(names[0]) if names else None
    status = await backend.status(names[0]) if names else None
    results = sorted(order.folder.glob("checkpoints/*/result.json"))
    if stored is None or status is None or not results or code != 0:
        raise DemoError(f"the DAG did not succeed (exit code {code}); see {order.log}")
    if order.kill_at is not None and watch.killed is None:
        raise DemoError(f"no worker was killed: the training ended before it reported step {order.kill_at}; see {order.log}")
    result = json.loads(results[0].read_text())
    return Outcome(
        run=trace(order.title, stored.record, status, watch.samples, watch.killed),
        accuracy=result["accuracy"],
        digest=result["weights_sha256"],
        steps_lost=sum(incident.steps_lost or 0 for incident in stored.record.incidents),
    )
