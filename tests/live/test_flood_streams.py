"""Strangers open gRPC streams without the token, over few connections and over many: the coordinator's memory stays small."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.agent_processes import Agents, agents
from tests.live.flood import Background, many_descriptors, peak_memory
from tests.live.test_flood import RECOVERY, recovered
from tests.live.test_flood_bytes import ANSWER, SECONDS, answered
from tests.waiting import PATIENCE, eventually

#: Bytes by which the memory of a coordinator may grow: for as many connections as it accepts, with all that they may send.
GROWTH = 64 << 20

#: Streams that are opened at a time.
BATCH = 200

HEADERS, SETTINGS, RESET, DATA = 1, 4, 3, 0
END_HEADERS = 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What each connection sends.

    Attributes:
        number: connections at a time.
        repeated: a long header comes again with each stream, in one byte.
        reset: each stream is ended at once.
        data: bytes of a message that never ends, with the first stream.
        reads: answers are read.
    """

    number: int
    repeated: bool = False
    reset: bool = False
    data: int = 0
    reads: bool = True


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def indexed(name: bytes, value: bytes) -> bytes:
    """Return a header that later streams of the connection can refer to."""
    size = len(value)
    if size < 127:
        return b"\x40" + bytes([len(name)]) + name + bytes([size]) + value
    rest, length = size - 127, b"\x7f"
    while rest >= 128:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return b"\x40" + bytes([len(name)]) + name + length + bytes([rest]) + value


PATH = b"/rallypoint.Coordinator/Session"
#: POST, http, the path, and an authority.
BASE = bytes([0x83, 0x86]) + b"\x04" + bytes([len(PATH)]) + PATH + b"\x01\x01x"
FIRST = BASE + indexed(b"te", b"trailers") + indexed(b"content-type", b"application/grpc") + indexed(b"x-a", b"A" * 3000)
LATER, LONG = BASE + bytes([0x80 | 64, 0x80 | 63]), bytes([0x80 | 62])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")


class Client:
    """One connection, which opens streams as fast as they are taken."""

    def __init__(self, kind: Kind, port: int, host: str) -> None:
        self._kind, self._stream = kind, 1
        self._sock = socket.socket()
        self._sock.settimeout(2)
        self._sock.bind((host, 0))
        self._sock.connect(("127.0.0.1", port))
        self._sock.setblocking(False)
        self._unsent = PREFACE + frame(HEADERS, END_HEADERS, 1, FIRST)
        body = b"\0" + struct.pack(">I", 1 << 20) + b"x" * kind.data
        if kind.data:
            self._unsent += b"".join(frame(DATA, 0, 1, body[at : at + 16384]) for at in range(0, len(body), 16384))

    def send(self) -> int:
        """Send what the connection takes now, and return the bytes; raises `OSError` if the other side has closed it."""
        if not self._unsent:
            self._unsent = b"".join(map(self._streams, range(1 if self._kind.data else BATCH)))
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self._sock.send(self._unsent)
            self._unsent = self._unsent[sent:]
            if self._kind.reads and not self._sock.recv(1 << 16):
                raise ConnectionResetError
        return sent

    def close(self) -> None:
        self._sock.close()

    def _streams(self, _: int) -> bytes:
        self._stream += 2
        headers = LATER + LONG * self._kind.repeated
        end = frame(RESET, 0, self._stream, struct.pack(">I", 8)) if self._kind.reset else b""
        return frame(HEADERS, END_HEADERS, self._stream, headers) + end


class Streams(Background):
    """A flood of streams at one port, from several addresses; connections are opened again when they are ended."""

    def __init__(self, port: int, kind: Kind) -> None:
        super().__init__()
        self._port, self._kind = port, kind
        self.opened = self.sent = 0

    def _run(self) -> None:
        clients: list[Client] = []
        with many_descriptors(self._kind.number + 512):
            while not self._stopping.is_set():
                until = time.monotonic() + 0.1
                while len(clients) < self._kind.number and time.monotonic() < until:
                    self.opened += 1
                    with contextlib.suppress(OSError):
                        clients.append(Client(self._kind, self._port, f"127.0.0.{2 + self.opened % 7}"))
                clients = [client for client in clients if self._send(client)]
            for client in clients:
                client.close()

    def _send(self, client: Client) -> bool:
        try:
            self.sent += client.send()
        except OSError:
            client.close()
            return False
        return True


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Kind(number=1), id="one connection"),
        pytest.param(Kind(number=4, repeated=True, reads=False), id="long headers", marks=pytest.mark.extended),
        pytest.param(Kind(number=4, reset=True), id="streams that are reset", marks=pytest.mark.extended),
        pytest.param(Kind(number=300, repeated=True), id="hundreds of connections", marks=pytest.mark.extended),
        pytest.param(Kind(number=5000, data=60_000), id="thousands with data", marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("nodes", [1, pytest.param(300, id="several servers", marks=pytest.mark.extended)])
def test_streams_without_the_token_use_little_memory(job: Agents, kind: Kind, nodes: int) -> None:
    """The coordinator answers meanwhile, and a killed worker trains again."""
    job.write_plan(service_type="grpc", max_restarts=9, max_nodes=nodes, last_call=1.0)
    coordinator = job.coordinator()
    where = json.loads(eventually(lambda: _read(job.folder / "endpoint.json")))
    job.node()
    job.drain()
    pids = job.running(1, 2)
    answered(job, where["port"])
    before, seconds = peak_memory(coordinator.pid), []
    with Streams(where["grpc"], kind) as streams:
        trains = recovered(job, pids, 2)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            seconds.append(answered(job, where["port"]))
            time.sleep(0.1)
        grown = peak_memory(coordinator.pid) - before
    print(
        f"{streams.opened} connections, {streams.sent >> 10} KiB: grown by {grown >> 20} MiB, "
        f"answers in {max(seconds):.2f} s, trains again after {trains:.2f} s"
    )

    assert streams.opened >= kind.number
    assert grown <= GROWTH
    assert max(seconds) <= ANSWER * PATIENCE
    assert trains <= RECOVERY * PATIENCE
    job.finish()
    assert {process.wait(60 * PATIENCE) for process in job.started} == {0}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
