"""Requests to an API server, one by one and in crowds."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import KubeApi, whole_lines
from rallypoint.backends.kubernetes.errors import ApiError, TooLargeError, refusal
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.watch import Target, pages
from tests.waiting import PATIENCE

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


@pytest.mark.extended
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


#: Answers of a server that a connection names.
_BODIES = {
    "/api/v1/namespaces/default/configmaps/values": b'{"a":[' + b"[]," * (4 << 20) + b"[]]}",
    "/api/v1/namespaces/default/configmaps/nested": b"[" * 200_000,
    "/api/v1/namespaces/default/configmaps/list": b"[1]",
    "/api/v1/namespaces/default/configmaps/other": b"{}",
    "/api/v1/namespaces/default/configmaps/large": b" " * (64 << 20) + b"{}",
}


@pytest.fixture
async def hostile():
    """A server in whose pods a script answers; its URL, and the paths that it was asked for."""
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        if request.path.endswith("/proxy/v1/endless"):
            endless = web.StreamResponse()
            await endless.prepare(request)
            with contextlib.suppress(ConnectionError):
                while True:
                    await endless.write(b"[" * (1 << 20))
            return endless
        if request.path.endswith("/proxy/v1/unauthorized"):
            return web.Response(status=401)
        if request.path in _BODIES:
            return web.Response(body=_BODIES[request.path], content_type="application/json")
        if "/pods/" in request.path:
            raise web.HTTPTemporaryRedirect("../../../../../../nodes/n/proxy/run/default/pod/c?cmd=id")
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_pod_does_not_redirect_its_supervisor(hostile, method):
    """To a path of the API server, where it would be asked with the supervisor's credentials."""
    url, asked = hostile
    api = KubeApi(Access(namespace="default", server=url))
    path = "/api/v1/namespaces/default/pods/p:29600/proxy/v1/status"
    try:
        with pytest.raises(ApiError) as caught:
            await api.request(method, path)
        with pytest.raises(ApiError):
            async with api.stream(path):
                pass
    finally:
        await api.close()

    assert caught.value.status == 307
    assert asked == [path, path]


async def test_a_pod_does_not_fill_the_memory_of_its_supervisor(hostile):
    """Its response has no end."""
    url, _ = hostile
    api = KubeApi(Access(namespace="default", server=url))
    try:
        with pytest.raises(ApiError, match="the HTTP response has more than 8388608 bytes"):
            await api.request("GET", "/api/v1/namespaces/default/pods/p:29600/proxy/v1/endless")
    finally:
        await api.close()


@pytest.mark.parametrize(
    "holder", ["x/../../../../../../../api/v1/nodes/n", "x?dryRun=All", "x#", "x%2f..", "x y", "../y", ".."]
)
async def test_a_name_reaches_no_other_object(hostile, holder):
    """The id of a supervisor is in the job's ConfigMap, where a pod of the job may write it; its Lease is deleted later."""
    url, asked = hostile
    api = KubeApi(Access(namespace="default", server=url))
    try:
        with pytest.raises(ApiError, match=r"rejected.*: '.+' is not a valid name of a Kubernetes object"):
            await api.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{holder}")
    finally:
        await api.close()

    assert asked == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("values", "more than 4194304 JSON values"),
        ("nested", "is not valid JSON"),
        ("list", "is not a JSON object"),
        ("other", "is not a Kubernetes object"),
        ("large", "the HTTP response has more than 67108864 bytes"),
    ],
)
async def test_a_server_that_is_none_of_kubernetes_is_an_error(hostile, name, said):
    """An editor of a connection can point it anywhere, and the API server of Airflow reads the answer."""
    url, _ = hostile
    cluster = Cluster(Access(namespace="default", server=url))
    try:
        with pytest.raises(ApiError, match=said):
            await cluster.get("configmaps", name)
    finally:
        await cluster.close()


async def test_a_page_that_is_too_large_is_requested_in_smaller_ones():
    """A user of the namespace can create many objects with large annotations."""
    sizes = []

    class Server:
        async def request(self, method, path, *, query):
            sizes.append(int(query["limit"]))
            begin = int(query.get("continue", 0))
            names = range(begin, min(begin + sizes[-1], 20))
            items = [{"metadata": {"name": str(name), "annotations": {"x": "," * 300_000}}} for name in names]
            more = {"continue": str(names.stop)} if names.stop < 20 else {}
            return json.dumps({"items": items, "metadata": {"resourceVersion": "7", **more}}).encode()

    found = [page async for page in pages(Server(), Target(path="/api/v1/pods"))]  # type: ignore[arg-type]

    assert [item["metadata"]["name"] for page in found for item in page.items] == [str(name) for name in range(20)]
    assert [page.version for page in found] == [*[""] * 19, "7"]
    assert sizes == [500, 62, 7, *[1] * 20]


class _Values:
    """A server with objects of many values."""

    def __init__(self, objects, values):
        item = {"metadata": {"name": "x"}, "data": {f"{number:x}": "" for number in range(values)}}
        self._item = json.dumps(item, separators=(",", ":")).encode()
        self._objects, self.sizes = objects, []

    async def request(self, method, path, *, query):
        self.sizes.append(int(query["limit"]))
        begin = int(query.get("continue", 0))
        end = min(begin + self.sizes[-1], self._objects)
        more = b',"continue":"%d"' % end if end < self._objects else b""
        items = b",".join([self._item] * (end - begin))
        return b'{"metadata":{"resourceVersion":"7"' + more + b'},"items":[' + items + b"]}"


async def test_a_page_of_many_values_does_not_stop_the_event_loop():
    """A user of the namespace can create ConfigMaps with 100,000 keys each; other triggers go on while they are read."""
    server, stops = _Values(6, 100_000), [0.0]

    async def tick():
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(0)
            last, before = clock(), last
            stops.append(last - before)

    ticking = asyncio.create_task(tick())
    found = [len(page.items) async for page in pages(server, Target(path="/api/v1/configmaps"))]  # type: ignore[arg-type]
    ticking.cancel()

    assert (sum(found), server.sizes[:2], server.sizes[-1]) == (6, [500, 62], 1)
    assert max(stops) < 0.05 * PATIENCE


async def test_an_object_may_have_more_values_than_a_page():
    """One object of 1.5 MiB may have a million; its list is still read."""
    server = _Values(2, 600_000)

    found = [page async for page in pages(server, Target(path="/api/v1/configmaps"))]  # type: ignore[arg-type]

    assert [len(page.items[0]["data"]) for page in found] == [600_000, 600_000]


async def test_a_long_error_response_is_not_parsed():
    """A script in a pod can answer with megabytes of JSON; the beginning of the text is shown."""
    error = refusal("GET /proxy", 500, b'{"message": "why", "x": [' + b"[]," * 100_000 + b"[]]}")

    assert error.said.startswith('{"message": "why"')


async def test_a_list_without_an_end_is_refused():
    """A DAG author can name an API server of their own; its pages must not fill the memory of the triggerer."""
    asked = []

    class Server:
        async def request(self, method, path, *, query):
            asked.append(query)
            return json.dumps({"items": [{}] * 20_000, "metadata": {"continue": "more"}}).encode()

    with pytest.raises(TooLargeError, match="the list has more than 200000 objects or 536870912 bytes"):
        [page async for page in pages(Server(), Target(path="/api/v1/pods"))]  # type: ignore[arg-type]
    assert len(asked) == 11


async def test_the_events_of_a_watch_come_whole_in_any_chunks():
    """The last one may be cut; a longer one than an API server sends is refused before it is in memory."""

    async def chunked(text, size):
        for begin in range(0, len(text), size):
            yield text[begin : begin + size]

    text = b"one\n\ntwo\nthr"
    for size in range(1, len(text) + 1):
        assert [line async for line in whole_lines(chunked(text, size), "/x")] == [b"one\n", b"two\n", b"thr"]

    async def endless():
        while True:
            yield b"x" * (1 << 20)

    with pytest.raises(TooLargeError, match="more than 16777216 bytes"):
        await anext(whole_lines(endless(), "/x"))


async def test_a_pod_does_not_make_its_supervisor_log_in_again(hostile):
    """It would read its kubeconfig and run its exec plug-in for each request."""
    url, asked = hostile
    api = KubeApi(Access(namespace="default", server=url))
    path = "/api/v1/namespaces/default/pods/p:29600/proxy/v1/unauthorized"
    try:
        with pytest.raises(ApiError) as caught:
            await api.request("GET", path)
    finally:
        await api.close()

    assert caught.value.status == 401
    assert asked == [path]


def test_of_a_refusal_only_the_beginning_is_kept():
    """It stands in records, logs and the tab."""
    error = refusal("GET /x", 500, json.dumps({"message": "m" * 20_000_000, "reason": "r" * 1000}).encode())

    assert (len(error.said), len(error.reason)) == (8192, 100)
    assert refusal("GET /x", 500, b'{"a":' * 100_000).said.startswith('{"a":')
