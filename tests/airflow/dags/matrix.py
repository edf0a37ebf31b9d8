"""Two DAGs of one task each, which waits for its job in the worker (`sync`) or in the triggerer (`deferred`).

What a run is told in its `conf`: `folder`, the scenario's own; `lease` of its job; `setup`, a shell command that its nodes run
first. The task stops at gates (`tests/airflow/gates.py`) on its way.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator
from tests.airflow.gates import Gates

TRAIN = Path(__file__).parents[1] / "train.py"


class GatedBackend:
    """A backend whose submission and whose taking of a result can be caught before and after."""

    def __init__(self, inner: Any, gates: Gates) -> None:
        self._inner, self._gates = inner, gates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, blueprint: Any, *, owner: str) -> Any:
        self._gates.at("intent-written")
        stored = await self._inner.submit(blueprint, owner=owner)
        self._gates.at("submitted")
        return stored

    async def save(self, record: Any, **words: Any) -> Any:
        takes = bool(record.collected_by)
        if takes:
            self._gates.at("finishing")
        stored = await self._inner.save(record, **words)
        if takes:
            self._gates.at("collected")
        return stored


class GatedTraining(ElasticTrainingOperator):
    """An operator that can be caught at the points between which it does its work."""

    def execute(self, context: Any) -> Any:
        self._gates(context).at("before-submission", tries=context["ti"].try_number, ti=str(context["ti"].id))
        return super().execute(context)

    def defer(self, **words: Any) -> Any:
        self._gates_now.at("deferring")
        super().defer(**words)

    def execute_complete(self, context: Any, event: Any = None) -> Any:
        self._gates(context).at("resuming")
        return super().execute_complete(context, event)

    def open_backend(self) -> Any:
        return GatedBackend(super().open_backend(), self._gates_now)

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        self._gates(context)
        return super().resume_execution(next_method, next_kwargs, context)

    def _gates(self, context: Any) -> Gates:
        self._gates_now = Gates(Path(context["dag_run"].conf["folder"]))
        return self._gates_now


def train(*, deferrable: bool) -> None:
    GatedTraining(
        task_id="train",
        job={"setup_commands": ["{{ dag_run.conf['setup'] }}"]},
        entrypoint=str(TRAIN),
        args=["{{ dag_run.conf['folder'] }}"],
        fault_tolerance={"lease": "{{ dag_run.conf['lease'] }}", "failure_grace_period": "1s", "retry_pause_period": 0},
        recovery={"stop_grace_period": "2s"},
        health={"report_interval": "500ms"},
        deferrable=deferrable,
        poll_interval=1.0,
        retries=4,
        retry_delay=timedelta(0),
    )


@dag(schedule=None, max_active_runs=8)
def sync() -> None:
    train(deferrable=False)


@dag(schedule=None, max_active_runs=8)
def deferred() -> None:
    train(deferrable=True)


sync()
deferred()
