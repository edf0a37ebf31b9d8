"""Storage and address of a coordinator: the status of its predecessor, its own status, and the endpoint for agents.

On one machine, all processes share a folder (`FileHome`). Pods share no folder; see `pod_home.py`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rallypoint.agent.coordinator.orphan import LOOK, FileHeartbeat, HeartbeatSource
from rallypoint.agent.coordinator.publishing import PROGRESS_PERIOD
from rallypoint.agent.coordinator.record import FileSize, LossSource, RecordFile, SizeSource
from rallypoint.agent.coordinator.sink import FileSink, StatusSink, read_status
from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.agent.files import read_json
from rallypoint.agent.transport.service import SupervisorDoor
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import replace_file
from rallypoint.wire.status import JobStatus

__all__ = ["FileHome", "Home"]


class Home(Protocol):
    """The environment of a coordinator: one implementation for a folder, one for a pod.

    Attributes:
        sink: writes the published status; `progress_period` is the time in seconds between two writes of progress only.
        heartbeat: source of the supervisor's heartbeat, None if there is none; `look` is the time in seconds between two reads.
        size: source of the requested bounds of the world, None if there is none.
        requested: returns a field of the job's record as JSON, None if there is no record.
        losses: source of the nodes that the supervisor found lost, None if there is none.
        door: handler of the supervisor's requests, None if supervisors send none.
        where: path or name of the stored status, for error messages.
    """

    progress_period: float
    look: float
    where: str

    @property
    def sink(self) -> StatusSink: ...  # noqa: D102  see above

    @property
    def heartbeat(self) -> HeartbeatSource | None: ...  # noqa: D102

    @property
    def door(self) -> SupervisorDoor | None: ...  # noqa: D102

    @property
    def size(self) -> SizeSource | None: ...  # noqa: D102

    @property
    def requested(self) -> Callable[[str], Awaitable[Any]] | None: ...  # noqa: D102

    @property
    def losses(self) -> LossSource | None: ...  # noqa: D102

    async def previous(self) -> JobStatus | None:
        """Return the last published status; raises `StaleError` if a newer coordinator is known."""
        ...

    def port(self, plan: Plan) -> int:
        """Return the port to listen on; 0 selects a free port."""
        ...

    def grpc_port(self, plan: Plan) -> int:
        """Return the port to listen on for gRPC; 0 selects a free port."""
        ...

    async def announce(self, endpoint: Endpoint) -> None:
        """Publish the coordinator's endpoint for agents; raises `ConfigError`."""
        ...

    async def close(self) -> None:
        """Close open files and connections."""
        ...


class FileHome:
    """The job's folder, which coordinator, agents and supervisor share."""

    look = LOOK
    door: SupervisorDoor | None = None
    losses: LossSource | None = None

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.where = str(args.status_file)
        self.progress_period: float = PROGRESS_PERIOD if args.progress_period is None else args.progress_period
        self.sink: StatusSink = FileSink(args.status_file)
        self.heartbeat: HeartbeatSource | None = None if args.record_file is None else FileHeartbeat(args.record_file)
        record = None if args.record_file is None else RecordFile(args.record_file)
        self.size: SizeSource | None = None if record is None else FileSize(record)
        self.requested: Callable[[str], Awaitable[Any]] | None = None if record is None else record.requested

    async def previous(self) -> JobStatus | None:
        """Read the status file."""
        return await asyncio.to_thread(self._previous)

    def _previous(self) -> JobStatus | None:
        args = self._args
        known = read_json(Endpoint, args.endpoint_file)
        if known is not None and (known.attempt, known.term) > (args.attempt, args.term):
            raise StaleError(
                f"{args.endpoint_file}: a newer coordinator (attempt {known.attempt}, term {known.term}) wrote this file; "
                f"this coordinator has attempt {args.attempt}, term {args.term}"
            )
        return read_status(args.status_file)

    def port(self, plan: Plan) -> int:
        """Return the port of the plan; 0 selects a free port."""
        return plan.rendezvous.coordinator_port

    def grpc_port(self, plan: Plan) -> int:
        """Return 0, for a free port: agents read the port from the endpoint file."""
        return 0

    async def announce(self, endpoint: Endpoint) -> None:
        """Write the endpoint file."""
        path = self._args.endpoint_file
        try:
            await asyncio.to_thread(replace_file, path, codec.dumps(endpoint) + "\n", durable=True)
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the file with the coordinator's address: {error.strerror}") from error

    async def close(self) -> None:
        """Do nothing: a folder needs no open files."""
