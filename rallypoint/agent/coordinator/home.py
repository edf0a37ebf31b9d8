"""Where a coordinator lives: what it finds there of its predecessor, where it writes, and how agents and supervisors find it.

A folder (`FileHome`) is what processes of one machine share; pods share none (`pod_home.py`).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Protocol

from rallypoint.agent.coordinator.losses import LossSource
from rallypoint.agent.coordinator.orphan import LOOK, FileHeartbeat, HeartbeatSource
from rallypoint.agent.coordinator.publishing import PROGRESS_PERIOD
from rallypoint.agent.coordinator.sink import FileSink, StatusSink, read_status
from rallypoint.agent.coordinator.size import FileSize, SizeSource
from rallypoint.agent.coordinator.wishes import FileWish, WishSource
from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.agent.files import read_json, replace_durably
from rallypoint.agent.transport.service import SupervisorDoor
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["FileHome", "Home"]


class Home(Protocol):
    """What a coordinator needs to know of where it is.

    Attributes:
        sink: where its status goes; `progress_period` is how many seconds are between two writes that tell progress only.
        heartbeat: its supervisor's, None where nobody says where that is; `look` is how many seconds are between two looks.
        size: where the bounds of the world stand that are wanted, None where nobody says.
        wish: where what somebody asks of the workers stands, None where nobody says.
        losses: where stands which nodes a supervisor has found lost, None where nobody says.
        door: where supervisors come by, None where they do not.
        where: of the status, for errors.
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
    def wish(self) -> WishSource | None: ...  # noqa: D102

    @property
    def losses(self) -> LossSource | None: ...  # noqa: D102

    async def previous(self) -> JobStatus | None:
        """Return the last status that was published there, by whomever; raises `StaleError` where a later one is known."""
        ...

    def port(self, plan: Plan) -> int:
        """Return where to listen; 0 takes a free port."""
        ...

    def grpc_port(self, plan: Plan) -> int:
        """Return where to listen for gRPC; 0 takes a free port."""
        ...

    async def announce(self, endpoint: Endpoint) -> None:
        """Let agents find us; raises `ConfigError`."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


class FileHome:
    """The job's folder, which coordinator, agents and supervisor share."""

    progress_period = PROGRESS_PERIOD
    look = LOOK
    door: SupervisorDoor | None = None
    losses: LossSource | None = None

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.where = str(args.status_file)
        self.sink: StatusSink = FileSink(args.status_file)
        self.heartbeat: HeartbeatSource | None = None if args.record_file is None else FileHeartbeat(args.record_file)
        self.size: SizeSource | None = None if args.record_file is None else FileSize(args.record_file)
        self.wish: WishSource | None = None if args.record_file is None else FileWish(args.record_file)

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
        """Any free one will do."""
        return plan.coordinator_port

    def grpc_port(self, plan: Plan) -> int:
        """As above; agents read it from the endpoint file."""
        return 0

    async def announce(self, endpoint: Endpoint) -> None:
        """Write the endpoint file."""
        path = self._args.endpoint_file
        try:
            await asyncio.to_thread(replace_durably, path, codec.dumps(endpoint) + "\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the file: {error.strerror}") from error

    async def close(self) -> None:
        """Nothing is open."""
