"""Simulated agents, thousands in a process: what an agent says to its coordinator, over a connection of its own each.

Reads one line of JSON on standard input (what to do), prepares, says `ready`, and begins when a second line comes. Each agent
opens its connection, asks for a place as a real one does, asks again where it is told nothing new, and is done when it has one.
Then a line of JSON tells when the first began and when the last was done (seconds of the machine's monotonic clock), and how
often they asked. The connections stay open until standard input ends, as those of real agents do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from benchmarks.http2 import Stream
from benchmarks.tls13 import Identity, TlsClient
from rallypoint.agent.transport.grpc_words import SESSION, TOKEN_KEY
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import TOKEN_HEADER, AgentReport, AgentState
from rallypoint.wire.paths import REPORT_PATH

__all__ = ["main"]

#: Seconds for which an agent lets the coordinator hold an answer back while it waits: a third of its lease (`NodeAgent._hold`).
_HOLD = 1.0


class Agent(asyncio.Protocol):
    """One agent's connection, over HTTP. `asks` gives the report with which it asks the n-th time."""

    def __init__(self, asks: Callable[[int], bytes], done: Callable[[], None], *, head: str = "") -> None:
        self._asks, self._done, self._head = asks, done, head
        self._transport: asyncio.Transport | None = None
        self._read = b""
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self.asked += 1
        self._transport.write(self._framed(self._asks(self.asked)))

    def _framed(self, report: bytes) -> bytes:
        length = f"Content-Type: application/octet-stream\r\nContent-Length: {len(report)}\r\n\r\n"
        return (self._head + length).encode() + report

    def data_received(self, data: bytes) -> None:
        """Read an answer."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        self._read = b""
        self._answered(body)

    def _answered(self, body: bytes) -> None:
        """Take a place, or ask again when there is nothing new."""
        if b'"kind": "assignment"' in body:
            self._done()
        elif b'"kind": "continue"' in body:
            self._ask()
        else:
            sys.exit(f"not what an agent is told that waits: {body[:500]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the process: no agent may be lost while it is measured."""
        if exc is not None:
            sys.exit(f"an agent lost its connection: {exc}")


class GrpcAgent(Agent):
    """One agent's connection, over gRPC. By hand: thousands of channels of grpcio would be what is measured."""

    def __init__(self, asks: Callable[[int], bytes], done: Callable[[], None], *, token: str) -> None:
        super().__init__(asks, done)
        self._stream = Stream(SESSION, {TOKEN_KEY: token})

    def _framed(self, report: bytes) -> bytes:
        return self._stream.sent(report)

    def data_received(self, data: bytes) -> None:
        """Read answers."""
        messages, reply = self._stream.received(data)
        if reply and self._transport is not None:
            self._transport.write(reply)
        for message in messages:
            self._answered(message)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    raise SystemExit(f"an answer without a length: {head!r}")


def _report(number: int, sequence: int) -> bytes:
    report = AgentReport(
        job="bench",
        fence=Fence(attempt=1),
        node=-1,
        incarnation=0,
        agent=f"host-{number}-4711-{number:08x}",
        host="127.0.0.1",
        local_world_size=8,
        store=f"127.0.0.1:{20000 + number}",
        state=AgentState.WAITING,
        hold=_HOLD,
        sequence=sequence,
    )
    return codec.dumps(report).encode()


async def _play(task: dict[str, object]) -> None:
    loop = asyncio.get_running_loop()
    host, port, token = str(task["host"]), int(str(task["port"])), str(task["token"])
    numbers = [int(number) for number in task["numbers"]]  # type: ignore[attr-defined]
    first = {number: _report(number, 1) for number in numbers}
    head = f"POST {REPORT_PATH} HTTP/1.1\r\nHost: {host}:{port}\r\n{TOKEN_HEADER}: {token}\r\n"
    left, everybody = len(numbers), asyncio.Event()

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            everybody.set()

    def asks(number: int) -> Callable[[int], bytes]:
        return lambda times: first[number] if times == 1 else _report(number, times)

    grpc = task["service"] == "grpc"
    identity = Identity.read(Path(str(task["tls"])), "bench", grpc=grpc) if task["tls"] else None
    agents: list[Agent] = []

    def connection(number: int) -> asyncio.Protocol:
        made = GrpcAgent(asks(number), done, token=token) if grpc else Agent(asks(number), done, head=head)
        agents.append(made)
        return made if identity is None else TlsClient(made, identity)

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    await asyncio.gather(*(loop.create_connection(lambda n=n: connection(n), host, port) for n in numbers))  # type: ignore[misc]
    await everybody.wait()
    ended = time.monotonic()
    asked = sum(agent.asked for agent in agents)
    print(json.dumps({"began": began, "ended": ended, "asked": asked}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Play the agents that are asked for."""
    asyncio.run(_play(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
