"""Whether a task was stopped, or only lost its process; and SIGTERM passed from a task's signal handler to its event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

__all__ = ["ENDED", "Bell", "TaskKey", "find_state", "may_cancel", "prepare", "task_state"]

_REMOVED = "removed"

#: States in which nobody waits for the job any more. An allow-list: a task that is deferred, queued or running again has an
#: owner somewhere, whatever made this process believe otherwise (a stalled triggerer, a redeployed worker, a clear).
ENDED = frozenset({"failed", "success", "skipped", _REMOVED})

#: State of a task that was cleared while it ran, until its process has ended.
CLEARED = "restarting"


class TaskKey(Protocol):
    """What names a task instance over all of its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int | None


def may_cancel(state: str | None) -> bool:
    """Return whether a task in `state` (None: it has none) gave its job up."""
    return state in ENDED


def prepare() -> None:
    """Import what asking needs, so that it does not have to be waited for when there is no time; takes a second or more."""
    import airflow.sdk.execution_time.task_runner  # noqa: F401, PLC0415  as in `_ask`


async def task_state(ti: TaskKey) -> str | None:
    """Ask Airflow for the present state of a task instance; raises what Airflow raises when it does not answer."""
    return await asyncio.to_thread(_ask, ti)


def _ask(ti: TaskKey) -> str | None:
    # Imported here: it brings the task runner, which a DAG file that merely names an operator does not need.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: PLC0415

    index = -1 if ti.map_index is None else ti.map_index
    states: dict[str, dict[str, Any]] = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=index
    )
    return find_state(states, ti)


def find_state(states: Mapping[str, Mapping[str, Any]], ti: TaskKey) -> str | None:
    """Return a task instance's state from Airflow's answer: by DAG run, then by task.

    One that Airflow does not know (any more) was removed, with its DAG run or by itself. None is the state of one that waits to
    be scheduled, which is what a clear leaves for a moment.
    """
    index = -1 if ti.map_index is None else ti.map_index
    state = states.get(ti.run_id, {}).get(ti.task_id if index < 0 else f"{ti.task_id}_{index}", _REMOVED)
    return None if state is None else str(getattr(state, "value", state))


class Bell:
    """An event that a signal handler sets and an event loop waits for."""

    def __init__(self) -> None:
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def ring(self) -> None:
        """Set the event; returns at once."""
        self._rung = True
        if self._wake is not None:
            self._wake()

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Return an event of the running loop that is set with this event, also if it was set before."""
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(heard.set)
        if self._rung:
            heard.set()
        try:
            yield heard
        finally:
            self._wake = None
