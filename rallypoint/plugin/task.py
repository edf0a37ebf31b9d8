"""Data of a task instance: which of its tries own a job, and where that job is. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rallypoint.provider.place import Place
from rallypoint.report.page.published import LIMIT, PAGE_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["HANDLE_KEY", "TaskKey", "TaskSeen", "map_index_of", "read_task"]

#: Key under which an operator stores its job in the task's state store.
HANDLE_KEY = "rallypoint_job"


@dataclass(frozen=True, kw_only=True)
class TaskKey:
    """Key of a task instance; `map_index` is -1 if it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@dataclass(frozen=True, kw_only=True)
class TaskSeen:
    """Data of a task instance in Airflow's database.

    Attributes:
        key: of the task instance.
        tries: number of each try, by the id that a job's record uses for its owner.
        handle: job name and place that the operator stored; None without a job. Any task may write it, so only places that
            the administrator allows are opened (live_access.py).
        kept: the page that the task published last, as JSON, or None. Any task may write it.
    """

    key: TaskKey
    tries: Mapping[str, int] = field(default_factory=dict)
    handle: Mapping[str, Any] | None = None
    kept: Any = None

    @property
    def job(self) -> str:
        """The job's name, "" without one."""
        return str((self.handle or {}).get("name") or "")

    @property
    def place(self) -> Place:
        """Where the job is."""
        return Place.of(self.handle or {})


def map_index_of(text: str | None) -> int:
    """Return the map index in a URL of Airflow's UI.

    If a task is not mapped, the UI leaves a placeholder in the URL; the placeholder and every invalid number become -1.
    """
    try:
        index = int(text or "")
    except ValueError:
        return -1
    return index if 0 <= index < 1 << 31 else -1  # range of the column


#: Characters of a note: any task may write one of any size.
_LARGEST_NOTE = 64 * 1024

#: Characters of a page in the database: escapes and spaces can make it longer than the pushed text.
_LARGEST = 8 * LIMIT


def read_task(session: Session, key: TaskKey) -> TaskSeen | None:
    """Return the data of a task instance; None if it does not exist."""
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
    from sqlalchemy import func, select  # noqa: PLC0415

    mine = (*_same(Noted, key), Noted.key == HANDLE_KEY)
    found = _json(session.scalar(select(Noted.value).where(*mine, func.length(Noted.value) <= _LARGEST_NOTE)))
    return found if isinstance(found, dict) else None


def _kept(session: Session, key: TaskKey) -> Any:
    from airflow.models.xcom import XComModel  # noqa: PLC0415  as above
    from sqlalchemy import Text, cast, func, select  # noqa: PLC0415

    # A task may push anything: larger values than any page are not read, and the rest is parsed only as JSON.
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
