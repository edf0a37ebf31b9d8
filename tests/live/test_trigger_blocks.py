"""No trigger keeps the event loop of its triggerer to itself, whatever its job writes."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.supervise import supervise
from rallypoint.job import ElasticJob
from rallypoint.provider.deferred import XComBookmark
from rallypoint.provider.sensing.watching import JobConditionTrigger
from rallypoint.provider.sensing.whose import Asker
from rallypoint.provider.task_log import telling_logs
from rallypoint.provider.trigger import ElasticTrainingTrigger
from rallypoint.wire import env

SCRIPT = Path(__file__).with_name("hostile_script.py")

#: Seconds for which the event loop may wait for something of ours. It is 0.03 to 0.05 on two cores with load.
LONGEST = 0.1

PERIOD = 0.005


class Beats:
    """Measure for how long others in the event loop wait.

    That is the time between two beats, or the CPU time of this process if that is less: what other processes take
    is no fault of a trigger.
    """

    def __init__(self) -> None:
        self.blocks: list[float] = []

    async def beat(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(PERIOD)
            self.blocks.append(min(time.monotonic() - wall, time.process_time() - cpu))


@contextmanager
def no_collections() -> Iterator[None]:
    """Stop garbage collections: one takes 0.1 to 0.7 s for the modules of Airflow alone, which is no fault of a trigger."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def events(home: Path, kind: str, beats: Beats) -> list[Any]:
    """Run a job with the triggers of its task and of a sensor; return both payloads."""
    where: dict[str, Any] = {"backend": "local", "home": str(home)}
    document = {
        "name": "hostile",
        "entrypoint": str(SCRIPT),
        "args": [kind, str(home / "jobs" / "hostile")],
        "recovery": {"max_restarts": 0},
        "fault_tolerance": {"retry_limit": 0, "rules": [{"log_pattern": r"^(\w+\s?)*: fatal$", "answer": "fail-now"}]},
        "health": {"report_interval": "500ms"},
    }
    backend = LocalBackend(home)
    await backend.submit(backend.plan(ElasticJob.model_validate(document)), owner="try-1")
    claim: dict[str, Any] = {
        "owner": "try-1",
        "deadline": None,
        "on_kill_action": "delete_job",
        "publish": True,
        "try_number": 1,
    }
    task = ElasticTrainingTrigger(name="hostile", poll_interval=1.0, get_logs="all", **claim, **where)
    task.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)  # type: ignore[assignment]
    never = {"kind": "progress", "metric": "never", "above": 1.0}
    sensor = JobConditionTrigger(condition=never, job_name="hostile", poll_interval=1.0, **where)
    beating = asyncio.create_task(beats.beat())
    try:
        return await asyncio.gather(*(anext(trigger.run()) for trigger in (task, sensor)))
    finally:
        beating.cancel()


@pytest.mark.parametrize(
    "kind",
    ["ranks", "pattern", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("lines", "events", "metrics"))],
)
def test_a_trigger_blocks_its_event_loop_for_milliseconds(light: Any, home: Path, kind: str) -> None:
    """Its job prints binary data, replaces the status file by the largest that is read, or fails with a line for its rule."""
    beats = Beats()
    with no_collections():
        ended, sensed = asyncio.run(events(Path(os.environ[env.HOME]), kind, beats))

    print(f"{kind}: longest blocks {[round(each, 3) for each in sorted(beats.blocks)[-5:]]} s, {len(beats.blocks)} beats")
    assert ended.payload["end"] == ("failed" if kind == "pattern" else "succeeded")
    assert sensed.payload["found"] == "impossible"
    assert max(beats.blocks) <= LONGEST


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, /, *values: object) -> None:
        self.lines.append(line % values if values else line)


async def told(home: Path, bookmark: object, beats: Beats) -> list[str]:
    """Run a job that prints a line each 50 ms for a second, and return what its trigger logs."""
    backend, log = LocalBackend(home), Log()
    script = "import time\nfor n in range(20): print(n, flush=True); time.sleep(0.05)"
    job = {"name": "printing", "entrypoint": [sys.executable, "-c", script]}
    await backend.submit(backend.plan(ElasticJob.model_validate(job)), owner="try-1")
    kept = XComBookmark(ti=Asker(dag_id="d", run_id="r", task_id="t", map_index=-1), pull=lambda *_: bookmark)
    supervising = asyncio.create_task(supervise(backend, "printing", holder="try-1"))
    beating = asyncio.create_task(beats.beat())
    try:
        async with telling_logs(backend, "printing", log, ranks=None, bookmark=kept) as task:
            await asyncio.wait({supervising, task}, timeout=120)
    finally:
        beating.cancel()
    return log.lines


@pytest.mark.parametrize(
    ("bookmark", "complaint"),
    [
        pytest.param("".join(f"{rank}=1.1.1.1;" for rank in range(150_000))[:-1], "", id="the longest"),
        pytest.param("100=1.1.1.1;" * 1_000_000, "", id="too long", marks=pytest.mark.extended),
        pytest.param("no cursor " * 10_000, "'no cursor ", id="no cursor", marks=pytest.mark.extended),
        pytest.param({"a": [1]}, "", id="no text", marks=pytest.mark.extended),
    ],
)
def test_a_bookmark_that_another_task_wrote_blocks_no_event_loop(
    light: Any, home: Path, bookmark: object, complaint: str
) -> None:
    """Any task may write the XCom in which a task keeps how far it has logged its job's output."""
    beats = Beats()
    with no_collections():
        lines = asyncio.run(told(Path(os.environ[env.HOME]), bookmark, beats))

    print(f"longest blocks {[round(each, 3) for each in sorted(beats.blocks)[-5:]]} s")
    assert max(beats.blocks) <= LONGEST
    assert max(map(len, lines)) < 2000
    if complaint:
        assert complaint in "".join(lines)
    else:
        assert any("19" in line for line in lines)
