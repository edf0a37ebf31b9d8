"""How far a task's log was told, kept in the task's XCom: the next triggerer goes on from there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from rallypoint.provider.task_state import TaskKey
from rallypoint.provider.task_xcom import read_xcom, write_xcom

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
            kept = await asyncio.to_thread(read_xcom, self.ti, LOG_CURSOR_KEY)
        except Exception as error:  # noqa: BLE001  whatever an XCom backend may raise
            log.info("cannot read the saved log position: %s", error)
            return ""
        return str(kept or "")

    async def write(self, cursor: str) -> None:
        """Keep a cursor."""
        try:
            await asyncio.to_thread(write_xcom, self.ti, LOG_CURSOR_KEY, cursor)
        except Exception as error:  # noqa: BLE001  as above
            log.info("cannot save the log position: %s", error)
