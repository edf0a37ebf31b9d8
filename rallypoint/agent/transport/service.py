"""What a transport carries: the coordinator as a service on one side, one exchange with it on the other.

There are two transports, HTTP (`http_server.py`, `http_client.py`) and gRPC (`grpc_server.py`, `grpc_client.py`); which of
them is used is settled in `choosing.py`. Another one needs these two protocols and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Reply
from rallypoint.wire.roster import Roster
from rallypoint.wire.status import JobStatus

__all__ = ["BODY_LIMIT", "KEPT", "MAX_HOLD", "CoordinatorService", "Exchange", "SupervisorDoor"]

#: Bytes of the largest message that is read.
BODY_LIMIT = 1 << 20

#: Seconds for which an answer is held back at the most, whatever was asked for.
MAX_HOLD = 60.0


#: Seconds for which both sides keep an idle connection: longer than any pause between two reports, because its end is news.
KEPT = 7 * 86400.0


class CoordinatorService(Protocol):
    """What a server calls. It has checked the token and the size of the message before."""

    async def report(self, report: AgentReport) -> Reply:
        """Take a report and return the answer, after `report.hold` seconds, a few more where it must be written first.

        Cancelling the call says that nobody waits for the answer any more.
        """
        ...

    def hung_up(self, agent: str) -> None:
        """Note that the last connection over which an agent was heard ended, whether it waited for an answer or not."""
        ...

    def status(self) -> JobStatus:
        """Return what is true of the job now."""
        ...


class SupervisorDoor(Protocol):
    """What a server calls when a supervisor comes by, where supervisors do."""

    def seen(self, mark: str) -> None:
        """Note a sign of life of a supervisor; see `wire.paths.SUPERVISOR_HEADER`."""
        ...

    def take(self, roster: Roster) -> None:
        """Replace what is known of where agents listen; raises `StaleError` for the roster of another attempt or term."""
        ...


class Exchange(Protocol):
    """What a client calls."""

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """Send a report and return the answer. Cancelling the call closes the connection that it was sent over.

        Raises `UnreachableError`, also after `timeout` seconds without one, and `ConfigError` when the two versions do not
        understand each other: no other try can work.
        """
        ...

    async def close(self) -> None:
        """Close what is open. An exchange under way ends with `UnreachableError`."""
        ...
