"""A sensor that starts in the triggerer: what Airflow makes of its trigger's arguments on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow.sdk import dag
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.enums import Encoding
from airflow.serialization.serialized_objects import DagSerialization

from rallypoint.provider.place import Place
from rallypoint.provider.sensing.conditions import HangCondition
from rallypoint.provider.sensing.watching import JobConditionTrigger
from rallypoint.sensors import HangSensor


@dag(schedule=None)
def starting():
    place = {"backend": "kubernetes", "namespace": "{{ params.namespace }}"}
    HangSensor(task_id="hangs", job_task_id="{{ group }}.train", level="doubt", start_from_trigger=True, **place)


def test_a_trigger_that_a_scheduler_starts_is_the_one_that_was_meant():
    """It comes through the serialized DAG, its templates are filled in, and the connection is none of its arguments."""
    task: Any = DagSerialization.from_dict(DagSerialization.to_dict(starting())).get_task("hangs")
    start = task.start_trigger_args
    stored = start.trigger_kwargs[Encoding.VAR]

    trigger = JobConditionTrigger(**{name: smart_decode_trigger_kwargs(value) for name, value in stored.items()})
    trigger.task_instance = SimpleNamespace(task=task, task_id="hangs", dag_id="starting", run_id="r", map_index=-1)  # type: ignore[assignment]
    trigger.render_template_fields({"group": "nightly", "params": {"namespace": "training"}})  # type: ignore[typeddict-unknown-key]

    assert task.start_from_trigger
    assert (start.trigger_cls, start.next_method) == (trigger.serialize()[0], "execute_complete")
    assert trigger.condition == HangCondition(level="doubt")
    assert trigger.job_task_id == "nightly.train"
    assert trigger.place == Place(backend="kubernetes", namespace="training")
