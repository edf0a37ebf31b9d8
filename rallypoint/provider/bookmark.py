"""How far a task's log was told, kept in the task's XCom: the next triggerer goes on from there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from rallypoint.provider.task_state import TaskKey

__all__ = ["LOG_CURSOR_KEY", "XComBookmark"]

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
            kept = await asyncio.to_thread(self._read)
        except Exception as error:  # noqa: BLE001  whatever an XCom backend may raise
            log.info("where the log was told up to cannot be read: %s", error)
            return ""
        return str(kept or "")

    async def write(self, cursor: str) -> None:
        """Keep a cursor."""
        try:
            await asyncio.to_thread(self._write, cursor)
        except Exception as error:  # noqa: BLE001  as above
            log.info("up to where the log was told cannot be kept: %s", error)

    def _read(self) -> object:
        from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  brings the task runner's means

        kept: object = XCom.get_one(key=LOG_CURSOR_KEY, **self._where)
        return kept

    def _write(self, cursor: str) -> None:
        from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  as above

        XCom.set(key=LOG_CURSOR_KEY, value=cursor, **self._where)

    @property
    def _where(self) -> dict[str, object]:
        ti = self.ti
        index = -1 if ti.map_index is None else ti.map_index
        return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}
