"""Connections to processes of other users of the machine, by the kernel's own account."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rallypoint.training.startup import peers

#: Connects as another user, and stays until its standard input is closed.
STRANGER = """
import encodings.idna, os, socket, sys  # the other user may not read the interpreter's folder
os.setresuid(65534, 65534, 65534)
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""

ADDRESSES = pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])


@contextmanager
def listening(host: str) -> Iterator[socket.socket]:
    """Listen at a free port; both families where the address is an IPv4 address in an IPv6 socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    mapped = host.startswith("::ffff:")
    with socket.create_server(("::" if mapped else host, 0), family=family, dualstack_ipv6=mapped) as server:
        server.settimeout(20)
        yield server


@ADDRESSES
def test_a_connection_of_the_same_user_passes(host: str) -> None:
    """Both ends are ours: no error, whichever end is looked at."""
    with listening(host) as server:
        before = peers.connections()
        with socket.create_connection((host, server.getsockname()[1])), server.accept()[0]:
            assert len(peers.connections().keys() - before.keys()) == 2
            peers.check(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@ADDRESSES
def test_a_connection_of_another_user_is_refused(host: str) -> None:
    """The sentence names the address, the user and who was expected."""
    with listening(host) as server:
        before = peers.connections()
        command = [sys.executable, "-S", "-c", STRANGER, host, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
            refused = pytest.raises(
                PermissionError, match=r"belongs to a process of user 65534; expected a process of user 0, because"
            )
            with server.accept()[0], refused:
                peers.check(before)
            assert stranger.stdin is not None
            stranger.stdin.close()


def test_an_earlier_connection_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may be connected to a service of another user, such as a database."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with listening("127.0.0.1") as server, socket.create_connection(server.getsockname()), server.accept()[0]:
        earlier = peers.connections()
        peers.check(earlier)
        assert earlier


def test_an_end_that_nobody_accepts_is_refused_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner is not known, and may read what was sent later."""
    monkeypatch.setattr(peers, "_PATIENCE", 0.05)
    with listening("127.0.0.1") as server:
        before = peers.connections()
        with socket.create_connection(server.getsockname()), pytest.raises(PermissionError, match="belongs to no process"):
            peers.check(before)
