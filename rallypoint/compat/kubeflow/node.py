"""The agent's end of the status protocol that HuggingFace's `Trainer` speaks (protocol.py): one port on the loopback.

It is plain HTTP, since nobody but this machine can hear it: the protocol takes either, by the address it is given. A request is
answered and its connection closed; nothing runs while nobody speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.transport.guarded_port import Admission, Connection, GuardedPort
from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.compat.kubeflow.protocol import (
    HEAD_LIMIT,
    Refused,
    Request,
    TrainerStatus,
    merged,
    read_head,
    read_status,
    told_env,
    url_path,
)
from rallypoint.wire.codec import WireError
from rallypoint.wire.connections import Limits
from rallypoint.wire.private import private_folder
from rallypoint.wire.progress import ProgressSlot

__all__ = ["StatusServer", "create"]

log = logging.getLogger("rallypoint.status")

_HOST = "127.0.0.1"

#: Seconds that a request has to arrive.
_PATIENCE = 5.0

#: Connections at a time: a node has fewer workers, and each says something every five seconds. Of more the oldest is ended.
_CONNECTIONS = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
}


class StatusServer(NodeCapability):
    """What the workers of the current round said of themselves.

    Args:
        folder: of the agent; the token lies there in a file that is its user's alone.
        workers: of the node.

    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._workers = workers
        self._token_file, self._token = folder / f"trainer-token-{os.getpid()}", os.urandom(32).hex()
        self._server: GuardedPort | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._round = 0
        self._told: dict[int, TrainerStatus] = {}

    async def begin_round(self, round_: int) -> None:
        """Listen to the workers of a round: what was said in an older one is not true of it.

        Where nobody can listen, workers are not told of anybody who does, and the log says so.
        """
        self._round, self._told = round_, {}
        if self._server is not None:
            return
        try:
            await asyncio.to_thread(self._leave_token)
            server = GuardedPort(Limits.few(_CONNECTIONS), self._admit)
            self._port = await server.start(_HOST, 0)
        except OSError as error:
            log.warning(
                "the agent cannot start the HTTP server that receives the workers' Kubeflow progress reports: %s; the job "
                "continues without these reports",
                error,
            )
            return
        self._server = server

    def _leave_token(self) -> None:
        private_folder(self._token_file.parent)
        self._token_file.unlink(missing_ok=True)
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(self._token, encoding="ascii")

    async def close(self) -> None:
        """Hang up on everybody, and forget the token."""
        if self._server is not None:
            await self._server.close()
        for writer in tuple(self._open):
            writer.close()
        await asyncio.to_thread(self._token_file.unlink, missing_ok=True)

    def worker_environment(self, environ: Mapping[str, str], round_: int, local_rank: int) -> dict[str, str]:
        """Return what a worker with `environ` is told in a round."""
        if not self._port:
            return {}
        return told_env(environ, f"http://{_HOST}:{self._port}{url_path(round_, local_rank)}", str(self._token_file))

    def progress(self, local_rank: int, slot: ProgressSlot) -> ProgressSlot:
        """Return a worker's progress with what it said here; what it reported otherwise counts more."""
        said = self._told.get(local_rank)
        if said is None:
            return slot
        step = said.step if slot.step is None else slot.step
        return dataclasses.replace(slot, step=step, metrics={**said.metrics, **slot.metrics})

    def _admit(self, _: bytes) -> Admission:
        def protocol(_: Connection) -> asyncio.Protocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_LIMIT), self._serve)

        return Admission(protocol=protocol)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
                status, text = await asyncio.wait_for(self._answer(reader), _PATIENCE)
                writer.write(_answered(status, text))
                await writer.drain()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, str]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            request = read_head(head.removesuffix(b"\r\n\r\n"), self._token)
            body = await reader.readexactly(request.length)
            self._check(request)
            news = read_status(body)
        except asyncio.LimitOverrunError:
            return 413, f"the request head exceeds {HEAD_LIMIT} bytes"
        except Refused as refused:
            return refused.status, str(refused)
        except WireError as error:
            return 400, str(error)
        self._told[request.local_rank] = merged(self._told.get(request.local_rank, TrainerStatus()), news)
        return 200, ""

    def _check(self, request: Request) -> None:
        if request.local_rank >= self._workers:
            raise Refused(404, f"local rank {request.local_rank}: no such worker; the node has {self._workers} workers")
        if request.round != self._round:
            raise Refused(
                409, f"the progress report is from rendezvous round {request.round}, but the current round is {self._round}"
            )


def _answered(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def create(context: NodeContext) -> StatusServer:
    """Return the node's half."""
    return StatusServer(context.folder, context.plan.nproc_per_node)
