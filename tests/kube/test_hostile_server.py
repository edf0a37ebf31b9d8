"""An API server of a DAG author, of the editor of a connection, or a proxy before it: it delays no other trigger."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import rallypoint.provider.sensing.streams  # noqa: F401  takes half a second, which is not measured
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import KubeApi
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.provider.sensing.watching import JobConditionTrigger
from tests.kube.hostile_api import HostileApi, hostile_api
from tests.live.test_trigger_blocks import LONGEST, Beats, no_collections

pytestmark = [pytest.mark.live, pytest.mark.may_block("the official client is imported, and kubeconfigs are read")]


def trigger(folder: Path, url: str) -> JobConditionTrigger:
    """The trigger of a sensor whose kubeconfig names a server of its author."""
    clusters, users = [{"name": "c", "cluster": {"server": url}}], [{"name": "u", "user": {"token": "t"}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}]
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": clusters, "users": users}
    (folder / "config").write_text(json.dumps({**config, "contexts": contexts}))
    return JobConditionTrigger(
        condition={"kind": "state", "phase": "Succeeded"},
        job_name="job",
        backend="kubernetes",
        namespace="n",
        kubeconfig=str(folder / "config"),
    )


async def beaten(server: HostileApi, watching: Callable[[], Awaitable[Any]]) -> tuple[str, Beats]:
    """Watch until the server has sent all; return what the server says, and how long other tasks waited."""
    beats, watches = Beats(), asyncio.ensure_future(watching())
    beating = asyncio.create_task(beats.beat())
    try:
        word = await asyncio.to_thread(server.printed.readline)
        await asyncio.sleep(0)  # the last beat
    finally:
        for task in (watches, beating):
            task.cancel()
        await asyncio.wait([watches, beating])
    return word.strip(), beats


@pytest.mark.parametrize(
    ("kind", "word"), [("gzip-lines", "closed"), ("gzip-bookmarks", "closed"), ("lines", "sent"), ("bookmarks", "sent")]
)
async def test_a_watch_lets_other_triggers_run(tmp_path: Path, kind: str, word: str) -> None:
    """A compressed watch is refused: 32 KiB of it are 32 MiB of lines. One that never pauses is read in parts."""
    with hostile_api(kind) as server, no_collections():
        found, beats = await beaten(server, lambda: anext(trigger(tmp_path, server.url).run()))

    assert found == word
    assert max(beats.blocks) <= LONGEST


async def test_a_change_of_a_node_takes_no_longer_with_many_pods(tmp_path: Path) -> None:
    """In a failure of the network, each of 1,000 nodes may change its state while there are 200,000 pods."""
    used = {}
    for kind in ("nodes-alone", "nodes"):  # the second one has 20,000 pods
        with hostile_api(kind) as server, no_collections():
            watches = asyncio.ensure_future(anext(trigger(tmp_path, server.url).run()))
            words, times = [], []
            for _ in range(3):
                words.append((await asyncio.to_thread(server.printed.readline)).strip())
                times.append(time.process_time())
            watches.cancel()
            await asyncio.wait([watches])
        assert words == ["begun", "sent", "read"]
        used[kind] = times[-1] - times[0]

    assert used["nodes"] < 8 * used["nodes-alone"]


@pytest.mark.parametrize(("kind", "word"), [("gzip-log", "closed"), ("log", "sent")])
async def test_a_log_of_a_pod_lets_other_triggers_run(kind: str, word: str) -> None:
    """It has the same limits."""
    with hostile_api(kind) as server, no_collections():
        api = KubeApi(Access(namespace="n", server=server.url))

        async def read() -> None:
            async with api.stream("/api/v1/namespaces/n/pods/p/log") as blocks:
                await consumed(blocks)

        found, beats = await beaten(server, read)
        if kind == "gzip-log":
            with pytest.raises(ApiError, match=r"the HTTP response is compressed \('gzip'\)"):
                await read()
        await api.close()

    assert found == word
    assert max(beats.blocks) <= LONGEST


async def consumed(blocks: AsyncIterator[bytes]) -> None:
    async for _ in blocks:
        pass


async def test_the_errors_of_a_watch_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each second stream has an event, so the watch is not broken; each other one has an error of 8 MiB."""
    with hostile_api("errors") as server, caplog.at_level(logging.INFO, logger="rallypoint"):
        found, _ = await beaten(server, lambda: anext(trigger(tmp_path, server.url).run()))

    said = [one.getMessage() for one in caplog.records if one.name.endswith("watching.watch")]
    assert found == "sent"
    assert len(said) == 1
    assert said[0].startswith("the Kubernetes watch of /api/v1/namespaces/n/pods failed: watch /api")
    assert len(said[0]) < 10_000


@pytest.mark.parametrize("date", ["1 Jan 2026 00:00:00 +99999999999999999999", "soon", ""])
async def test_a_date_that_is_none_is_an_error_of_the_server(date: str) -> None:
    """Callers retry those, and no others."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": date})

    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubeApi(Access(namespace="n", server=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        with pytest.raises(ApiError, match="the Date header in the response of the API server is invalid"):
            await api.time()
    finally:
        await api.close()
        await runner.cleanup()
