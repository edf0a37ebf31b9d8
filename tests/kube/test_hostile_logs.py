"""An API server that ignores how much of a log is requested: its reader stops there, and keeps no more in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import KubeApi
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.leaving import SupervisorPods
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.logs import read_tail, tail_bytes
from rallypoint.backends.kubernetes.watching.observe import trouble_in
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from rallypoint.wire.podlog import front
from tests.kube.pods import JOB, pod

pytestmark = [pytest.mark.live, pytest.mark.may_block("the official client is imported, and kubeconfigs are read")]

#: Bytes that the server sends, if it may, and many more than a reader needs; buffers of both sides are included.
SENT, MANY = 96 << 20, 32 << 20

FRONT = f"2026-11-26T22:00:00.000000001Z {front(1, 0, 'out')}".encode()


@dataclass
class Hostile:
    """A server with one pod and its log of `SENT` bytes, in blocks like this one; `sent` counts them."""

    block: bytes
    status: int = 200
    sent: int = 0
    found: dict[str, Any] = field(default_factory=lambda: pod(phase="Failed"))
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": [self.found]})
        if not request.path.endswith("/log"):
            return web.json_response(self.found)
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while self.sent < SENT:
                await response.write(self.block)
                self.sent += len(self.block)
        return response


@contextlib.asynccontextmanager
async def serving(block: bytes, *, status: int = 200) -> AsyncIterator[Hostile]:
    hostile = Hostile(block, status)
    app = web.Application()
    app.router.add_get("/{tail:.*}", hostile.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hostile.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield hostile
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def cluster_of(hostile: Hostile) -> AsyncIterator[Cluster]:
    cluster = Cluster(Access(namespace="default", server=hostile.url))
    try:
        yield cluster
    finally:
        await cluster.close()


def failed_pod() -> PodView:
    view = pod_view(pod(phase="Failed"))
    assert view is not None
    return view


@pytest.mark.parametrize(
    "block",
    [
        pytest.param((FRONT + b"x\n") * 10_000, id="short lines"),
        pytest.param((FRONT + "😀".encode() + b"x" * 1_000_000 + b"\n") * 2, id="long lines"),
        pytest.param(b"x" * (1 << 20), id="no line end"),
        pytest.param((FRONT.replace(b"/0/", b"/1/") + b"x\n") * 10_000, id="lines of another rank"),
    ],
)
async def test_the_end_of_a_log_has_its_limits_from_any_server(block: bytes) -> None:
    """Fails if one request of the task tab fills the memory of Airflow's API server."""
    async with serving(block) as hostile, cluster_of(hostile) as cluster:
        tail = await LogReader(cluster, JOB, rank=0, cursor="").tail(100, node=None, local_ranks=1)

    assert len(tail.lines) <= 100
    assert max((len(line.text) for line in tail.lines), default=0) <= 64 << 10
    assert hostile.sent < MANY


@pytest.mark.parametrize("block", [b"\n" * (1 << 20), b"\v\n" * (1 << 19), b"x" * (1 << 20)], ids=["lines", "tabs", "no line"])
async def test_the_last_lines_of_a_failed_pod_have_their_limit_from_any_server(block: bytes) -> None:
    """Fails if they are read whole: the event loop of a triggerer splits them into lines."""
    async with serving(block) as hostile, cluster_of(hostile) as cluster:
        lines = await read_tail(cluster, failed_pod(), 20, tail_bytes(1))

    assert len(lines) <= 20
    assert sum(map(len, lines)) <= 64 << 10
    assert hostile.sent < MANY


async def test_the_last_words_of_a_supervisor_have_their_limit_from_any_server() -> None:
    """Fails if a command reads the whole log of a supervisor's pod that has ended."""
    async with serving(b"why\n" * (1 << 18)) as hostile:
        told = await SupervisorPods(Access(namespace="default", server=hostile.url)).lost("supervisor")

    assert told.startswith("has ended (Failed)\n  why")
    assert len(told) < 100_000
    assert hostile.sent < MANY


def test_the_last_lines_of_many_pods_have_one_limit() -> None:
    """Fails if the failed pods of a large job fill the memory together."""
    assert [tail_bytes(pods) for pods in (0, 1, 1024, 16_384)] == [64 << 10] * 3 + [4 << 10]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_long_error_is_not_read_to_its_end(follow: bool) -> None:
    """Fails if the event loop parses megabytes of an error of any server."""
    async with serving(b'{"message": "' + b"A" * (1 << 20), status=500) as hostile:
        api, path = KubeApi(Access(namespace="default", server=hostile.url)), "/api/v1/namespaces/default/pods/p/log"
        try:
            with pytest.raises(ApiError) as caught:
                await (api.stream(path).__aenter__() if follow else api.request("GET", path))
        finally:
            await api.close()

    assert caught.value.said == '{"message": "' + "A" * 287
    assert hostile.sent < MANY


def test_events_of_any_server_are_read_in_their_limits() -> None:
    """Fails if the message of an event of a pod is kept however long it is, or another value than a text ends a trigger."""
    long = {"reason": "FailedMount", "message": "m" * 100_000, "lastTimestamp": "2026-01-02T03:04:05Z"}
    odd = {"reason": ["FailedMount"], "message": 1, "lastTimestamp": {}}

    assert trouble_in([odd, {"reason": "FailedMount", "message": {}, "eventTime": 3}, long]) == f"FailedMount: {'m' * 1024}"
