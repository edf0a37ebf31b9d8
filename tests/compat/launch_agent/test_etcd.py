"""Settling the coordinator's address through etcd, with etcd's own Python client against a server that speaks its API v2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiohttp import web

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.transport.http_server import HttpServer
from rallypoint.compat.launch_agent.host import EtcdAgreement
from rallypoint.compat.launch_agent.settle import EtcdPlace
from tests.compat.launch_agent.etcd_server import EtcdServer, needs_etcd, serving

pytestmark = needs_etcd

KEY = "/rallypoint/job/coordinator"


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with serving() as server:
        yield server


def agreement(server: EtcdServer, within: float = 300.0) -> EtcdAgreement:
    return EtcdAgreement(EtcdPlace(host="127.0.0.1", port=server.server_port, key=KEY), within=within)


class Nobody:
    """A coordinator that is asked for its health alone."""

    async def report(self, _: object) -> None: ...

    def hung_up(self, _: str) -> None: ...

    def status(self) -> None: ...


async def test_the_first_hosts_and_the_others_join(server: EtcdServer) -> None:
    """The key holds the address as long as its host is there."""
    shell = HttpServer(Nobody(), token="t")  # type: ignore[arg-type]
    ours = f"127.0.0.1:{await shell.start('127.0.0.1', 0)}"
    first, second = agreement(server), agreement(server)
    try:
        assert await first.settle(ours) == ours
        assert await second.settle("127.0.0.1:1") == ours
        await second.close()
        assert server.value(KEY) == ours
    finally:
        await first.close()
        await shell.close()
    assert server.value(KEY) is None


async def test_a_host_that_was_killed_is_forgotten(server: EtcdServer) -> None:
    """Nobody answers at the address that is settled: it is waited for until its key dies."""
    server.put(KEY, "127.0.0.1:1")
    late = agreement(server)
    settling = asyncio.create_task(late.settle("127.0.0.1:2"))
    done, _ = await asyncio.wait({settling}, timeout=0.1)
    assert not done

    server.delete(KEY)

    assert await settling == "127.0.0.1:2"
    await late.close()


async def test_who_answers_and_is_no_coordinator_is_not_joined(server: EtcdServer) -> None:
    """Somebody else has got the port meanwhile; the error says what is settled, and for how long it was waited."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    theirs = f"127.0.0.1:{runner.addresses[0][1]}"
    server.put(KEY, theirs)
    try:
        with pytest.raises(
            ConfigError,
            match=f"{KEY} of etcd .*: the key contains {theirs}, but no coordinator answers at this address",
        ):
            await agreement(server, within=0.0).settle("127.0.0.1:2")
    finally:
        await runner.cleanup()


async def test_an_etcd_that_is_away_is_an_error_in_the_end() -> None:
    """It says what cannot be reached."""
    with serving() as server:
        port = server.server_port
    gone = EtcdAgreement(EtcdPlace(host="127.0.0.1", port=port, key=KEY), within=0.0)

    with pytest.raises(ConfigError, match=rf"{KEY} of etcd at 127\.0\.0\.1:{port} .*: cannot connect"):
        await gone.settle("127.0.0.1:2")


async def test_the_key_is_kept_alive(server: EtcdServer) -> None:
    """A refresh brings it back where it has died; another's is left alone."""
    ours = agreement(server)
    await ours.settle("127.0.0.1:2")
    server.delete(KEY)

    await asyncio.to_thread(ours._refresh)
    assert server.value(KEY) == "127.0.0.1:2"
    server.put(KEY, "127.0.0.1:3")
    with pytest.raises(OSError, match=r"Compare"):
        await asyncio.to_thread(ours._refresh)

    await ours.close()
    assert server.value(KEY) == "127.0.0.1:3"
