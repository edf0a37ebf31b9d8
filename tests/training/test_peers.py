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
import encodings.idna, os, socket, struct, sys  # the other user may not read the interpreter's folder
os.setresuid(65534, 65534, 65534)
family, kind, _, _, address = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=socket.SOCK_STREAM)[0]
connection = socket.socket(family, kind)
if "bound" in sys.argv:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
connection.connect(address)
connection.send(b"data")
if "reset" in sys.argv:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
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


@contextmanager
def connected(host: str, *how: str) -> Iterator[None]:
    """Accept a connection of another user."""
    with listening(host) as server:
        command = [sys.executable, "-S", "-c", STRANGER, host, str(server.getsockname()[1]), *how]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
            assert stranger.stdin is not None
            assert stranger.stdout is not None
            with server.accept()[0]:
                assert stranger.stdout.readline() == b"connected\n"
                yield
            stranger.stdin.close()


AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@AS_ROOT
@pytest.mark.parametrize("how", ["", "bound"])
@ADDRESSES
def test_a_connection_of_another_user_is_refused(host: str, how: str) -> None:
    """The sentence names the address, the user and who was expected; every user may bind a socket to an interface."""
    before = peers.connections()
    refused = pytest.raises(PermissionError, match=r"belongs to a process of user 65534; expected a process of user 0, because")
    with connected(host, how), refused:
        peers.check(before)


@AS_ROOT
def test_a_connection_that_was_reset_is_refused_if_it_left_data() -> None:
    """The kernel does not know any more who sent the data, which a script can still read."""
    before = peers.connections()
    with connected("127.0.0.1", "reset"), pytest.raises(PermissionError, match="was reset and has unread data"):
        peers.check(before)


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("fe80::1%lo", False),
    ],
)
def test_addresses_of_this_machine_are_known(host: str, ours: bool) -> None:
    """An end at another address is one of another machine."""
    assert peers._is_of_this_machine(host) is ours


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
