"""A sample of `python -m tests.airflow --payloads N`, without an Airflow: real jobs report what nobody expects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.errors import TrainingFailed
from rallypoint.provider.trigger import ElasticTrainingTrigger
from rallypoint.wire import env, sanitize
from tests.airflow.payloads import batches
from tests.provider.tasks import FakeTask, context
from tests.wire.payloads import parsed

SCRIPT = Path(__file__).parents[1] / "airflow" / "payload_script.py"

#: CPU seconds for which a trigger may keep the event loop to itself.
BUSY = 0.1

#: Those that `make test` runs.
QUICK = ("fails_deferred", "reports_sync")

SAMPLE = {batch.dag: batch for batch in batches(80, seed=16)}


class Operator(ElasticTrainingOperator):
    """Its Airflow is a word; when it defers, the trigger runs at once, and its event is what the database would store."""

    async def ask_state(self, context: Any) -> str:
        return "running"

    def defer(self, *, trigger: Any, **_: Any) -> NoReturn:
        self.event = asyncio.run(first_event(trigger))
        raise Deferred


class Deferred(Exception):  # noqa: N818  it is no error
    pass


async def first_event(trigger: ElasticTrainingTrigger) -> Any:
    """Return the trigger's event; no other trigger in its event loop waits long for it."""
    busy: list[float] = []
    beats = asyncio.create_task(beat(busy))
    try:
        async for event in trigger.run():
            return event.payload
        return None
    finally:
        beats.cancel()
        print(f"the event loop was busy for at most {max(busy):.3f} s at a time, {len(busy)} beats")
        assert max(busy) <= BUSY


async def beat(busy: list[float]) -> None:
    """Note for how many CPU seconds at a time the event loop did something else; load of the machine does not add to them."""
    while True:
        began = time.thread_time()
        await asyncio.sleep(0.01)
        busy.append(time.thread_time() - began)


@pytest.mark.parametrize(
    "dag", [dag if dag in QUICK else pytest.param(dag, marks=pytest.mark.extended) for dag in sorted(SAMPLE)]
)
def test_what_a_job_reports_arrives_as_the_policy_says(light: Any, tmp_path: Path, dag: str) -> None:
    """Twenty payloads: metrics and their names, results, a checkpoint, lines of output, an error."""
    batch = SAMPLE[dag]
    (tmp_path / "payload").write_bytes(batch.packed())
    ti = FakeTask()
    operator = Operator(
        task_id="train",
        entrypoint=str(SCRIPT),
        args=[str(tmp_path)],
        recovery={"max_restarts": 0, "node_replacements": 0},
        fault_tolerance={"retry_limit": 0},
        health={"report_interval": "500ms"},
        get_logs="all",
        deferrable=dag.endswith("deferred"),
        poll_interval=1.0,
    )

    failed = run(operator, ti)

    assert failed is batch.fails
    parsed(json.dumps(ti.pushed, allow_nan=False))
    names = sanitize.clean({name: float(number) for name, number in batch.metrics.items()})
    assert (ti.pushed["metrics"], ti.pushed["faults"]) == ({**names, "watched": 1.0}, int(batch.fails))
    check_files()


def run(operator: Operator, ti: FakeTask) -> bool:
    """Run a task to its end; return whether its job has failed."""
    try:
        with contextlib.suppress(Deferred):
            operator.execute(context(ti))
            return False
        parsed(json.dumps(operator.event, allow_nan=False))
        operator.execute_complete(context(ti), event=operator.event)
    except TrainingFailed as error:
        text = str(error)
    else:
        return False
    assert sanitize.clean_text(text) == text
    return True


def check_files() -> None:
    """What lies on disk is JSON for any parser, too."""
    (folder,) = [path for path in Path(os.environ[env.HOME], "jobs").iterdir() if not path.name.startswith(".")]
    for name in ("record.json", "status.json"):
        text = (folder / name).read_text(encoding="utf-8")
        parsed(text)
        assert "watched" in text
