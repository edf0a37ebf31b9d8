"""Task instances and contexts as tests need them: no database, no task runner."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FakeTask", "Store", "context"]


@dataclass
class FakeTask:
    """As much of a task instance as operators and triggers use; `pushed` is what went to XCom."""

    id: str = "try-1"
    dag_id: str = "nightly"
    run_id: str = "manual__1"
    task_id: str = "train"
    map_index: int | None = -1
    try_number: int = 1
    max_tries: int = 0
    start_date: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(tz=datetime.timezone.utc))
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Store(dict):
    """As much of a task's state store as is used."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def context(ti: FakeTask, **more: Any) -> Any:
    """What a task's `execute` is given."""
    return {"ti": ti, **more}
