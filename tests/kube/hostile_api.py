"""An API server that sends whatever delays its client: `python -m tests.kube.hostile_api KIND`.

Prints its port, then `sent` or `closed` when all of KIND was sent, or given up by the client; of nodes also `begun` before, and
`read` afterwards. A program of its own, so that its work is not measured as that of its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["HostileApi", "hostile_api"]

#: Pods of the list before nodes change: all on one host, of many jobs.
PODS = 20_000


@dataclass(frozen=True)
class HostileApi:
    """The address of one, and what it prints."""

    url: str
    printed: IO[str]


@contextlib.contextmanager
def hostile_api(kind: str) -> Iterator[HostileApi]:
    """Run one."""
    with subprocess.Popen([sys.executable, "-m", __name__, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield HostileApi(f"http://127.0.0.1:{int(process.stdout.readline())}", process.stdout)
        finally:
            process.kill()


def event(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}, separators=(",", ":")).encode() + b"\n"


def node(*, ready: bool) -> bytes:
    condition = {"type": "Ready", "status": str(ready)}
    metadata = {"name": "host", "uid": "n", "resourceVersion": "ba"[ready]}
    return event("MODIFIED", {"metadata": metadata, "status": {"conditions": [condition]}})


def pod(number: int) -> dict[str, Any]:
    labels = {"job": f"job-{number}", "uid": f"uid-{number}", "part": "node", "attempt": "1", "node": "0", "incarnation": "1"}
    metadata = {"name": f"pod-{number}", "uid": f"p-{number}", "resourceVersion": "5"}
    return {
        "metadata": metadata | {"labels": {f"rallypoint.dev/{key}": value for key, value in labels.items()}},
        "spec": {"nodeName": "host-a"},
    }


NODES = (node(ready=True) + node(ready=False)) * 500
BOOKMARK = event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
LONG_ERROR = event("ERROR", {"code": 500, "reason": "r" * 100_000, "message": "A" * (8 << 20)})

#: By kind of attack: the resource whose watch gets the data, the block, and the number of blocks.
BLOCKS: dict[str, tuple[str, bytes, int]] = {
    "gzip-lines": ("pods", b"\n" * (1 << 20), 16),
    "gzip-bookmarks": ("pods", BOOKMARK * 10_000, 10),
    "lines": ("pods", b"\n" * (1 << 20), 8),
    "bookmarks": ("pods", BOOKMARK * 1000, 60),
    "nodes": ("nodes", NODES, 6),
    "nodes-alone": ("nodes", NODES, 6),
    "errors": ("pods", b"", 0),
    "log": ("log", b"\n" * (1 << 20), 16),
    "gzip-log": ("log", b"\n" * (1 << 20), 32),
}


class Server:
    """Answers lists, and sends each watch what its kind is."""

    def __init__(self, kind: str) -> None:
        self._kind, self._listed, self._failures, self._sent = kind, asyncio.Event(), 0, False
        self._where, self._block, self._count = BLOCKS[kind]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                url = urlsplit((await reader.readuntil(b"\r\n\r\n")).decode().split()[1])
                query = parse_qs(url.query)
                what = url.path.rpartition("/")[2]
                if "watch" in query or what == "log":
                    await self._watch(what, writer)
                    return
                writer.write(self._answer(url.path, what))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, what: str) -> bytes:
        found: dict[str, Any] = {"metadata": {"resourceVersion": "9"}, "items": []}
        if "/configmaps/" in path or "/leases/" in path:
            found, status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}, b"404 Not Found"
        else:
            status = b"200 OK"
        if what == "pods" and self._kind == "nodes":
            found["items"] = [pod(number) for number in range(PODS)]
        body = json.dumps(found).encode()
        return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)

    async def _watch(self, what: str, writer: asyncio.StreamWriter) -> None:
        zipped = self._kind.startswith("gzip") and what == self._where
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Encoding: gzip\r\n\r\n" if zipped else b"\r\n")
        await writer.drain()
        if what == "pods":
            self._listed.set()
        if what != self._where:
            await asyncio.Event().wait()
        if self._kind == "errors":
            await self._fail(writer)
        elif self._sent:  # the client has read all before, and goes on from there
            print("read", flush=True)
            await asyncio.Event().wait()
        else:
            await self._send(writer, zlib.compressobj(9, zlib.DEFLATED, 31) if zipped else None)

    async def _fail(self, writer: asyncio.StreamWriter) -> None:
        """Send an event in one stream, and an error in the next one."""
        self._failures += 1
        writer.write(BOOKMARK if self._failures % 2 else LONG_ERROR)
        await writer.drain()
        if self._failures == 5:
            print("sent", flush=True)

    async def _send(self, writer: asyncio.StreamWriter, zipped: Any) -> None:
        if self._where == "nodes":
            await self._listed.wait()
            print("begun", flush=True)
        try:
            for _ in range(self._count):
                writer.write(zipped.compress(self._block) + zipped.flush(zlib.Z_SYNC_FLUSH) if zipped else self._block)
                await writer.drain()
                await asyncio.sleep(0)
        except OSError:
            print("closed", flush=True)
        else:
            print("sent", flush=True)
            self._sent = True
            if self._where != "nodes":
                await asyncio.Event().wait()


async def main(kind: str) -> None:
    server = await asyncio.start_server(Server(kind).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
