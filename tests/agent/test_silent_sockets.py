"""Connections of a server that has no limits of its own: which are ended, and that their owner sees it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from rallypoint.agent.silent_sockets import Accepted, SweepLimits, accepted, descriptors_open, plain_address, sweep, to_end
from tests.waiting import eventually

LIMITS = SweepLimits(most=20, strangers=6, patience=10.0)
HERE = "127.0.0.1"


def one(port: int, *, host: str = HERE, received: int = 0, silent: float = 1.0) -> Accepted:
    return Accepted(host=host, port=port, received=received, silent=silent, fd=port)


def ports(found: list[Accepted]) -> list[int]:
    return [each.port for each in found]


def test_who_says_nothing_has_a_deadline() -> None:
    """However few there are; who said something, or is known, has none."""
    seen = [one(1, silent=10.0), one(2, silent=9.0), one(3, received=5, silent=99.0), one(4, silent=99.0)]

    assert ports(to_end(seen, {(HERE, 4)}, LIMITS)) == [1]


def test_a_rejected_connection_is_ended() -> None:
    """Whatever it has sent, except by an address that is known."""
    seen = [one(1, received=5), one(2, received=5), one(3, received=5)]

    assert ports(to_end(seen, {(HERE, 3)}, LIMITS, {(HERE, 2), (HERE, 3), (HERE, 9)})) == [2]


def test_the_most_silent_strangers_make_room() -> None:
    """From half of the connections on; those that have said something go last."""
    known = [one(port, received=9) for port in range(100, 110)]
    silent = [one(port, host=f"10.0.0.{port}", silent=port) for port in range(1, 8)]
    said = [one(port, host=f"10.0.1.{port}", received=9) for port in range(11, 13)]
    seen = [*said, *silent, *known]

    assert ports(to_end(seen, {(HERE, each.port) for each in known}, LIMITS)) == [7, 6, 5]
    assert to_end(seen[:10], (), LIMITS) == []


def test_no_address_has_more_than_half_of_what_strangers_may() -> None:
    """So one peer cannot keep out another."""
    seen = [one(port, host="10.0.0.1", silent=port / 10) for port in range(1, 9)]
    seen += [one(port, host=f"10.0.1.{port}", received=1) for port in (20, 21, 22)]

    assert ports(to_end(seen, (), LIMITS)) == [8, 7, 6, 5, 4]


def test_senders_stay_at_a_store() -> None:
    """Its clients prove nothing, but they speak at once."""
    limits = SweepLimits(most=4, strangers=2, patience=10.0, senders_stay=True)
    seen = [one(port, received=1, silent=99.0) for port in range(10)] + [one(20), one(21)]

    assert ports(to_end(seen, (), limits)) == [20]


@pytest.mark.parametrize(
    ("host", "plain"), [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")]
)
def test_an_address_has_one_spelling(host: str, plain: str) -> None:
    """The zone is dropped, and an IPv4 address within IPv6 is written as IPv4."""
    assert plain_address(host) == plain


@pytest.fixture
def pairs() -> Iterator[tuple[int, list[socket.socket], list[socket.socket]]]:
    """A listening port with four connections: its port, the clients' ends and the server's."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HERE, 0)))
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(4)]
        servers = [stack.enter_context(listener.accept()[0]) for _ in range(4)]
        yield listener.getsockname()[1], clients, servers


def test_the_kernel_tells_who_has_sent_something(pairs: tuple[int, list[socket.socket], list[socket.socket]]) -> None:
    """Other descriptors of the process are not looked at, and none is left open."""
    port, clients, servers = pairs
    clients[1].sendall(b"hello")
    assert servers[1].recv(5) == b"hello"
    before = descriptors_open()
    seen = {each.fd: each for each in accepted(port)}

    assert {fd: each.received for fd, each in seen.items()} == {
        server.fileno(): 5 if number == 1 else 0 for number, server in enumerate(servers)
    }
    assert {(each.host, each.port) for each in seen.values()} == {client.getsockname() for client in clients}
    assert descriptors_open() == before


def test_a_swept_connection_ends_for_both(pairs: tuple[int, list[socket.socket], list[socket.socket]]) -> None:
    """Its owner reads the end, as of one that the other side has closed; the known one goes on."""
    port, clients, servers = pairs
    limits = SweepLimits(most=100, strangers=100, patience=0.05)
    clients[0].sendall(b"x")
    known = {clients[1].getsockname()}
    eventually(lambda: sum(each.silent >= 0.05 for each in accepted(port)) == 4)

    assert sweep(port, known, limits) == 2
    for number, server in enumerate(servers):
        server.setblocking(False)
        if number < 2:
            with contextlib.suppress(BlockingIOError):
                assert server.recv(1) == b"x"
        else:
            assert (server.recv(1), clients[number].recv(1)) == (b"", b"")
