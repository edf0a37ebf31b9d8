"""Requests to an API server, one by one and in crowds."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import KubeApi

pytestmark = [pytest.mark.live, pytest.mark.may_block("the official client is imported, and kubeconfigs are read")]


@pytest.fixture
async def slow():
    """A server that takes a second for each answer; its URL, and how many it was asked for at a time at the most."""
    here, most = [0], [0]

    async def answer(_: web.Request) -> web.Response:
        here[0] += 1
        most[0] = max(most[0], here[0])
        await asyncio.sleep(1.0)
        here[0] -= 1
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", most
    await runner.cleanup()


async def test_a_crowd_waits_for_its_turn(slow):
    """All jobs of a process may ask at once: a request's time begins with its turn, so that none gives up in the queue."""
    url, most = slow
    api = KubeApi(Access(namespace="default", server=url))
    try:
        await api.request("GET", "/version")  # the client is slow to import
        answers = await asyncio.gather(*(api.request("GET", "/api/v1/pods", timeout=5.0) for _ in range(400)))
    finally:
        await api.close()

    assert set(answers) == {b"{}"}
    assert 1 < most[0] <= 64
