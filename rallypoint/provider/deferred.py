"""Work of a deferred task's trigger: supervision of the job, and its deletion if the task was stopped.

A triggerer has no `ti.xcom_push`, so XComs are read and written here; that blocks, and is called in a thread. Importing this
takes half a second, so the trigger imports it in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.contract import Backend
from rallypoint.backends.cursors import MAX_CURSOR
from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.conduct import Post, cancel, conduct, is_local
from rallypoint.provider.publishing import Publication, publish_interval
from rallypoint.provider.task_state import TaskKey, may_cancel
from rallypoint.report.page.published import PAGE_KEY
from rallypoint.wire.errors import RallypointError

__all__ = ["Deferred", "XComBookmark", "attend", "give_up", "publication_of"]

log = logging.getLogger(__name__)

#: The key; a new try begins without one, as with all XComs.
_LOG_CURSOR_KEY = "rallypoint_log_cursor"


class Deferred(Protocol):
    """The trigger of a deferred task, which supervises the job of `claim`."""

    claim: Claim
    task_instance: Any

    @property
    def log(self) -> Any:
        """Logs for the task."""

    def open_backend(self) -> Backend:
        """Return the backend of the job. Blocks; called in a thread."""

    def spawn_supervisor(self, claim: Claim) -> None:
        """Start a supervisor that continues without the triggerer. Blocks; called in a thread."""

    async def ask_state(self) -> str | None:
        """Return the present state of the task that waits for this trigger."""


async def attend(trigger: Deferred) -> Ending:
    """Supervise the job of a trigger to its end; raises only when the trigger is cancelled."""
    ending, claim = None, trigger.claim
    try:
        async with _post(trigger) as post:
            ending = await conduct(post)
    except Exception as error:
        if ending is not None:  # only closing the backend failed
            trigger.log.warning(
                "Cannot close the connection to the backend of job %s: %s; the job is not affected", claim.name, error
            )
            return ending
        known = isinstance(error, (OSError, RallypointError))
        if not known:
            trigger.log.exception("The supervision of job %s failed; the traceback follows", claim.name)
        text = str(error) if known else f"supervision of job {claim.name} failed: {type(error).__name__}: {error}"
        return Ending(end=End.ERROR, name=claim.name, text=text, local_failure=is_local(error))
    else:
        return ending


async def give_up(trigger: Deferred) -> None:
    """Delete the job if its task was stopped."""
    state = await trigger.ask_state()
    if not may_cancel(state):
        trigger.log.info("Job %s continues, because its Airflow task is in state %r", trigger.claim.name, state)
        return
    async with _post(trigger) as post:
        if await cancel(post):
            trigger.log.info("Deleting job %s, because its Airflow task is in state %r", trigger.claim.name, state)


@contextlib.asynccontextmanager
async def _post(trigger: Deferred) -> AsyncIterator[Post]:
    # In a thread, because opening a backend imports modules, which would block other triggers.
    backend = await asyncio.to_thread(trigger.open_backend)
    try:
        ti = trigger.task_instance
        yield Post(
            claim=trigger.claim,
            backend=backend,
            spawn=trigger.spawn_supervisor,
            log=trigger.log,
            bookmark=None if ti is None else XComBookmark(ti=ti),
            publication=publication_of(trigger),
        )
    finally:
        await backend.close()


def publication_of(trigger: Deferred) -> Publication | None:
    """Return the publisher of the page of a trigger's job; None if it is not published."""
    ti, claim = trigger.task_instance, trigger.claim
    if ti is None or not claim.publish:
        return None
    return Publication(
        write=functools.partial(_write_xcom, ti, PAGE_KEY),
        interval=publish_interval(),
        owner=claim.owner,
        number=claim.try_number,
        place=claim.backend,
    )


def _read_xcom(ti: TaskKey, key: str) -> object:
    """Return the value, None where there is none; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  brings the task runner's means

    found: object = XCom.get_one(key=key, **_names(ti))
    return found


def _write_xcom(ti: TaskKey, key: str, value: object) -> None:
    """Set the value; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  as above

    XCom.set(key=key, value=value, **_names(ti))


def _names(ti: TaskKey) -> dict[str, object]:
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}


@dataclass(frozen=True, kw_only=True)
class XComBookmark:
    """A bookmark of a task instance. Airflow's failures are logged, and cost a few lines told twice."""

    ti: TaskKey
    pull: Callable[[TaskKey, str], object] = _read_xcom

    async def read(self) -> str:
        """Return the cursor that was written last, "" where none was."""
        try:
            kept = await asyncio.to_thread(self.pull, self.ti, _LOG_CURSOR_KEY)
        except Exception as error:  # noqa: BLE001  whatever an XCom backend may raise
            log.info(
                "Cannot read which lines of the job's output are already in the task log, so some lines may appear twice: %s",
                error,
            )
            return ""
        if kept is None or (isinstance(kept, str) and len(kept) <= MAX_CURSOR):
            return kept or ""
        log.info("Ignored the XCom %s, because it is not a text of at most %d characters", _LOG_CURSOR_KEY, MAX_CURSOR)
        return ""

    async def write(self, cursor: str) -> None:
        """Keep a cursor."""
        try:
            await asyncio.to_thread(_write_xcom, self.ti, _LOG_CURSOR_KEY, cursor)
        except Exception as error:  # noqa: BLE001  as above
            log.info(
                "Cannot store which lines of the job's output are in the task log; some lines may appear twice after a "
                "restart: %s",
                error,
            )
