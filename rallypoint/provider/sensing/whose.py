"""The job of a sensor: named directly, or by another task of the DAG run, which pushes the name to XCom."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.task_state import TaskKey, task_state
from rallypoint.wire.sanitize import one_line

__all__ = ["JOB_NAME_KEY", "Asker", "Asking", "FromAirflow", "Whose", "find_name"]

#: Under which key operators push the name of their job, before they submit it.
JOB_NAME_KEY = "job_name"

#: Characters of the longest name; anybody who writes XComs may push any value.
_LONGEST = 253

#: States in which a task that has pushed no name will not do so any more, unless it is cleared.
_NEVER = frozenset({"failed", "upstream_failed", "skipped", "removed", "success"})


@dataclass(frozen=True, kw_only=True)
class Whose:
    """A job by `name`; or where that is "" by the task that owns it, of map index `index` (None: the sensor's own, or none)."""

    name: str = ""
    task_id: str = ""
    index: int | None = None


@dataclass
class Asker:
    """A task instance by its names."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int | None


class Asking(Protocol):
    """What is asked of Airflow about another task of the same run."""

    async def pulled(self, task_id: str, index: int) -> Any:
        """Return what it pushed as the name of its job, None where it has pushed none."""

    async def state(self, task_id: str, index: int) -> str | None:
        """Return its state."""


async def find_name(whose: Whose, own_index: int, airflow: Asking) -> str | Finding:
    """Return the job's name; or why there is none yet, or will be none."""
    if whose.name:
        return whose.name
    if not whose.task_id:
        return Finding(found=Found.IMPOSSIBLE, text="job_name: '' is not allowed; expected the name of a job")
    # A mapped sensor watches the job of its own index, or all of its instances one job.
    wanted = dict.fromkeys((own_index, -1)) if whose.index is None else (whose.index,)
    for index in wanted:
        name = await airflow.pulled(whose.task_id, index)
        if isinstance(name, str) and 0 < len(name) <= _LONGEST:
            return name
        if name is not None:
            shown = one_line(str(name)[:_LONGEST], 100) if isinstance(name, str) else type(name).__name__
            text = f"task {whose.task_id} has pushed {shown!r} as XCom job_name; expected the name of a job"
            return Finding(found=Found.IMPOSSIBLE, text=text)
    states = [await airflow.state(whose.task_id, index) for index in wanted]
    state = next((state for state in states if state is not None), None)
    if state in _NEVER:
        text = f"task {whose.task_id} is {state} and has pushed no XCom job_name, so there is no job to wait for"
        return Finding(found=Found.IMPOSSIBLE, text=text)
    return Finding(
        found=Found.WAITING, text=f"task {whose.task_id} is {state or 'not started'} and has not pushed the XCom job_name yet"
    )


@dataclass(frozen=True, kw_only=True)
class FromAirflow:
    """Asks Airflow itself, for the task instance of a sensor; in a worker and in a triggerer alike."""

    ti: TaskKey

    async def pulled(self, task_id: str, index: int) -> Any:
        """Read the XCom, through the XCom backend that is set up."""
        return await asyncio.to_thread(self._pull, task_id, index)

    def _pull(self, task_id: str, index: int) -> Any:
        # Imported here: a DAG file that merely names a sensor does not need it.
        from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415

        where = {"dag_id": self.ti.dag_id, "run_id": self.ti.run_id, "task_id": task_id, "map_index": index}
        return XCom.get_one(key=JOB_NAME_KEY, **where)

    async def state(self, task_id: str, index: int) -> str | None:
        """Ask for the task's state."""
        return await task_state(Asker(dag_id=self.ti.dag_id, run_id=self.ti.run_id, task_id=task_id, map_index=index))
