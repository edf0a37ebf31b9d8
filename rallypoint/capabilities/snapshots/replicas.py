"""An agent's part in the ring: it takes the snapshots of the node before it, and sends those of its own to the node behind."""

from __future__ import annotations

import logging
from pathlib import Path

from rallypoint.agent.tls import Tls
from rallypoint.capabilities.snapshots.replica_sender import ReplicaSender
from rallypoint.capabilities.snapshots.replica_server import ReplicaServer
from rallypoint.capabilities.snapshots.replica_shelf import ReplicaShelf
from rallypoint.capabilities.snapshots.wire import PlanSection
from rallypoint.wire.plan import Plan

__all__ = ["Replicas"]

log = logging.getLogger("rallypoint.replicas")


class Replicas:
    """Both sides of one agent.

    Args:
        folder: of its snapshots.
        plan: of the job, which asks for replicas.
        attempt, secret: of the job.
        host: where other nodes reach this one.
        tls: certificates of the job; None is without TLS.

    """

    def __init__(self, folder: Path, plan: Plan, *, attempt: int, host: str, secret: str, tls: Tls | None = None) -> None:
        shelf = ReplicaShelf(folder, limit=PlanSection.of(plan).replica_limit, attempt=attempt)
        self._host, self._server = host, ReplicaServer(shelf, secret=secret, tls=tls)
        self._sender = ReplicaSender(folder, secret=secret, attempt=attempt, tls=tls)
        self.address = ""

    async def begin(self) -> None:
        """Listen, to workers and to another node. Where that cannot be, no replicas are kept, and the log says so."""
        try:
            await self._sender.begin()
            port = self._server.start(self._host)
        except OSError as error:
            log.warning(
                "this node cannot receive copies of other nodes' snapshots, because the agent cannot open a socket on host "
                "%s: %s",
                self._host,
                error.strerror or error,
            )
            return
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{host}:{port}"

    def assigned(self, target: str, ranks: range) -> None:
        """Take note of the next node, "" where there is none, and of this node's ranks."""
        self._sender.assigned(target, ranks)

    def close(self) -> None:
        """Neither take nor send any more."""
        self._server.close()
        self._sender.close()
