"""What is known of a task instance: which of its tries own a job, and where that job is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.provider.place import Place

__all__ = ["HANDLE_KEY", "TaskKey", "TaskSeen", "map_index_of"]

#: Under which an operator notes its job in the task's state store.
HANDLE_KEY = "rallypoint_job"


@dataclass(frozen=True, kw_only=True)
class TaskKey:
    """Names a task instance; `map_index` is -1 for one that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@dataclass(frozen=True, kw_only=True)
class TaskSeen:
    """What Airflow's database says of a task instance.

    Attributes:
        key: which one.
        tries: number of each of its tries, by the id that a job's record names as its owner.
        handle: what the operator noted of its job: `name`, and the words of `Place`; None when there is none. Any task may
            write it, so nothing is opened by it that the administrator has not allowed (live_access.py).
        kept: the page that the task published last, as JSON; None when there is none. Any task may write it, too.
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
    """Return the map index that Airflow's UI puts into an address.

    For a task that is not mapped it leaves its own placeholder there; that, and whatever is no number, is -1.
    """
    try:
        return max(-1, int(text or ""))
    except ValueError:
        return -1
