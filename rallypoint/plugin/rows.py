"""Reading a task instance from Airflow's database, for the API server alone: it may, and a worker may not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rallypoint.plugin.task import HANDLE_KEY, TaskKey, TaskSeen
from rallypoint.report.page.published import LIMIT, PAGE_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["read_task"]

#: Characters of a page in the database: escapes and spaces may make it longer than what was pushed.
_LARGEST = 8 * LIMIT


def read_task(session: Session, key: TaskKey) -> TaskSeen | None:
    """Return what the database says of a task instance, None when there is no such one."""
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415  a worker has no use for the database's models
    from airflow.models.taskinstancehistory import TaskInstanceHistory  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    own = session.execute(select(TaskInstance.id, TaskInstance.try_number).where(*_same(TaskInstance, key))).first()
    if own is None:
        return None
    past = select(TaskInstanceHistory.task_instance_id, TaskInstanceHistory.try_number)
    tries = {str(name): number for name, number in session.execute(past.where(*_same(TaskInstanceHistory, key)))}
    tries[str(own[0])] = own[1]
    return TaskSeen(key=key, tries=tries, handle=_handle(session, key), kept=_kept(session, key))


def _handle(session: Session, key: TaskKey) -> dict[str, Any] | None:
    from airflow.models.task_state_store import TaskStateStoreModel as Noted  # noqa: PLC0415  as above
    from sqlalchemy import select  # noqa: PLC0415

    text = session.scalar(select(Noted.value).where(*_same(Noted, key), Noted.key == HANDLE_KEY))
    found = _json(text)
    return found if isinstance(found, dict) else None


def _kept(session: Session, key: TaskKey) -> Any:
    from airflow.models.xcom import XComModel  # noqa: PLC0415  as above
    from sqlalchemy import Text, cast, func, select  # noqa: PLC0415

    # A task may push anything. What is larger than any page is left in the database, and nothing but JSON is made of the rest.
    text = cast(XComModel.value, Text)
    mine = (*_same(XComModel, key), XComModel.key == PAGE_KEY)
    return _json(session.scalar(select(text).where(*mine, func.length(text) <= _LARGEST)))


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def _same(model: Any, key: TaskKey) -> tuple[Any, ...]:
    return (
        model.dag_id == key.dag_id,
        model.run_id == key.run_id,
        model.task_id == key.task_id,
        model.map_index == key.map_index,
    )
