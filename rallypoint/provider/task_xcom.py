"""Access to XComs of a task instance from a triggerer, which has no `ti.xcom_push`. Blocks; called in a thread."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from rallypoint.provider.task_state import TaskKey

__all__ = ["LOG_CURSOR_KEY", "XComBookmark", "read_xcom", "write_xcom"]


def read_xcom(ti: TaskKey, key: str) -> object:
    """Return the value, None where there is none; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  brings the task runner's means

    found: object = XCom.get_one(key=key, **_names(ti))
    return found


def write_xcom(ti: TaskKey, key: str, value: object) -> None:
    """Set the value; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  as above

    XCom.set(key=key, value=value, **_names(ti))


def _names(ti: TaskKey) -> dict[str, object]:
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}


log = logging.getLogger(__name__)

#: The key; a new try begins without one, as with all XComs.
LOG_CURSOR_KEY = "rallypoint_log_cursor"


@dataclass(frozen=True, kw_only=True)
class XComBookmark:
    """A bookmark of a task instance. Airflow's failures are logged, and cost a few lines told twice."""

    ti: TaskKey

    async def read(self) -> str:
        """Return the cursor that was written last, "" where none was."""
        try:
            kept = await asyncio.to_thread(read_xcom, self.ti, LOG_CURSOR_KEY)
        except Exception as error:  # noqa: BLE001  whatever an XCom backend may raise
            log.info(
                "Cannot read which lines of the job's output are already in the task log, so some lines may appear twice: %s",
                error,
            )
            return ""
        return str(kept or "")

    async def write(self, cursor: str) -> None:
        """Keep a cursor."""
        try:
            await asyncio.to_thread(write_xcom, self.ti, LOG_CURSOR_KEY, cursor)
        except Exception as error:  # noqa: BLE001  as above
            log.info(
                "Cannot store which lines of the job's output are in the task log; some lines may appear twice after a "
                "restart: %s",
                error,
            )
