"""Former place of `rallypoint.compat.launch_agent.events`; programs may go on importing it from here."""

from __future__ import annotations

from rallypoint.compat.launch_agent.events import Events, EventsTimeoutError, StopAllTasks

__all__ = ["Events", "EventsTimeoutError", "StopAllTasks"]
