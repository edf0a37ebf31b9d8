"""The part of etcd's API v2 that one key needs, in memory: read, create, compare, a time to live, delete."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["EtcdServer", "serving"]


class EtcdServer(ThreadingHTTPServer):
    """`keys` holds value and end of life of each key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock, self.keys, self.index = threading.Lock(), dict[str, tuple[str, float]](), 0

    def value(self, key: str) -> str | None:
        """Return what a key holds, None where it is not there (any more)."""
        value, until = self.keys.get(key, ("", 0.0))
        return value if time.monotonic() < until else None


class _Handler(BaseHTTPRequestHandler):
    server: EtcdServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with self.server.lock:
            if urlsplit(self.path).path == "/version":
                self._send(200, {"etcdserver": "2.3.8", "etcdcluster": "2.3.0"})
                return
            value = self.server.value(self._key)
            self._send(404, _error(100, "Key not found")) if value is None else self._send(200, self._node("get", value))

    def do_PUT(self) -> None:
        given = {name: values[0] for name, values in parse_qs(self._body(), keep_blank_values=True).items()}
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        given.update(asked)
        with self.server.lock:
            before = self.server.value(self._key)
            if given.get("prevExist") == "false" and before is not None:
                self._send(412, _error(105, "Key already exists"))
            elif "prevValue" in given and before is None:
                self._send(404, _error(100, "Key not found"))
            elif "prevValue" in given and before != given["prevValue"]:
                self._send(412, _error(101, "Compare failed"))
            else:
                until = time.monotonic() + float(given["ttl"]) if given.get("ttl") else float("inf")
                self.server.keys[self._key] = (given["value"], until)
                self.server.index += 1
                self._send(201 if before is None else 200, self._node("set", given["value"]))

    def do_DELETE(self) -> None:
        wanted = parse_qs(urlsplit(self.path).query).get("prevValue", [None])[0]
        with self.server.lock:
            before = self.server.value(self._key)
            if before is None:
                self._send(404, _error(100, "Key not found"))
            elif wanted is not None and wanted != before:
                self._send(412, _error(101, "Compare failed"))
            else:
                del self.server.keys[self._key]
                self._send(200, self._node("delete", before))

    @property
    def _key(self) -> str:
        return urlsplit(self.path).path.removeprefix("/v2/keys")

    def _body(self) -> str:
        return self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()

    def _node(self, action: str, value: str) -> dict[str, Any]:
        index = self.server.index
        return {"action": action, "node": {"key": self._key, "value": value, "modifiedIndex": index, "createdIndex": index}}

    def _send(self, code: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Etcd-Index", str(self.server.index))
        self.send_header("X-Etcd-Cluster-Id", "c")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        pass


def _error(code: int, message: str) -> dict[str, Any]:
    return {"errorCode": code, "message": message, "cause": "", "index": 1}


@contextlib.contextmanager
def serving() -> Iterator[EtcdServer]:
    """Serve while the context lasts."""
    with EtcdServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
