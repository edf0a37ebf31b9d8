"""A job with many pods, and a process that may have few files open: it follows the log, and others of the process go on."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.labels import INCARNATION
from rallypoint.backends.requests import submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.wire.podlog import front
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.waiting import eventually_async

pytestmark = [pytest.mark.live, pytest.mark.extended]

PODS = "/api/v1/namespaces/default/pods"

#: Seconds after the first connection that follows a log when each pod writes its second line.
LATE = 6.0

STATUS = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "containerStatuses": [{"name": "trainer", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
}


class Front:
    """Before the emulator, with the logs of pods that it has not: each node has two lines."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._late = float("inf")
        self.streams = self.most = 0

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_route("GET", f"{PODS}/{{name}}/log", self._log)
        application.router.add_route("*", "/{rest:.*}", self._pass_on)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            try:
                await site.start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        found = re.search(r"-a1-n(\d+)-1$", request.match_info["name"])
        if found is not None:
            await response.write(_line("05", int(found[1]), "early"))
        if "follow" not in request.query:
            if time.monotonic() >= self._late and found is not None:
                await response.write(_line("06", int(found[1]), "late"))
            return response
        self.streams += 1
        self.most = max(self.most, self.streams)
        self._late = min(self._late, time.monotonic() + LATE)
        try:
            await asyncio.sleep(self._late - time.monotonic())
            if found is not None:
                await response.write(_line("06", int(found[1]), "late"))
            await asyncio.sleep(600)
        finally:
            self.streams -= 1
        return response

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": request.content_type}
        limit = aiohttp.ClientTimeout(total=None)
        data = await request.read()
        async with self._session.request(
            request.method, self._url + request.raw_path, headers=headers, data=data, timeout=limit
        ) as answer:
            kept = {key: text for key, text in answer.headers.items() if key in ("Content-Type", "Date")}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for block in answer.content.iter_any():
                await response.write(block)
        return response


def _line(second: str, node: int, text: str) -> bytes:
    return f"2026-01-01T00:00:{second}.5Z {front(1, node, 'out')}{text} of {node}\n".encode()


async def _submitted(url: str, nodes: int) -> list[dict[str, Any]]:
    """Submit a job; return the pods of its nodes, as a supervisor makes them."""
    backend = KubernetesBackend(Access(namespace="default", server=url))
    job = load_job({"name": "large", "image": "any:1", "entrypoint": "/x.py", "nodes": nodes}, based=False)
    await submit_or_adopt(backend, backend.plan(job), owner="owner")
    supervising = asyncio.create_task(supervise(backend, "large", holder="test"))
    async with aiohttp.ClientSession() as session:

        async def made() -> list[dict[str, Any]]:
            async with session.get(url + PODS) as answer:
                found = [pod for pod in (await answer.json())["items"] if "-a1-n" in pod["metadata"]["name"]]
            return found if len(found) == nodes else []

        try:
            return await eventually_async(made, 60.0, every=0.2)
        finally:
            supervising.cancel()
            await asyncio.wait([supervising])
            await backend.close()


def _run(cluster: Running, pod: dict[str, Any], name: str, incarnation: int) -> None:
    """Make a pod that has the labels of another, and runs."""
    labels = {**pod["metadata"]["labels"], INCARNATION: str(incarnation)}
    spec = {"containers": [{"name": "trainer", "image": "x"}], "nodeName": "machine"}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    code, answer = cluster.request("POST", PODS, made)
    assert code < 300, answer
    _set_status(cluster, name)


def _set_status(cluster: Running, name: str) -> None:
    change = {"status": copy.deepcopy(STATUS)}
    code, answer = cluster.request("PATCH", f"{PODS}/{name}/status", change, content="application/merge-patch+json")
    assert code < 300, answer


async def _follow(url: str, files: int, ranks: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.kube.log_follower", url, str(files), str(ranks)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(await asyncio.wait_for(process.stdout.readline(), 300))
        return told
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _replace(cluster: Running, pods: list[dict[str, Any]]) -> None:
    """Have the pods of the job run: without kubelets they are bound to no machine."""
    for pod in pods:
        name = pod["metadata"]["name"]
        cluster.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        _run(cluster, pod, name, 1)


@pytest.mark.parametrize(
    ("nodes", "forged", "files", "streams"),
    [pytest.param(1, 1100, 256, 1, id="forged pods"), pytest.param(150, 0, 128, 28, id="a large job")],
)
async def test_the_log_of_many_pods_leaves_files_for_others(nodes: int, forged: int, files: int, streams: int) -> None:
    """Anybody who can create pods gives them a job's labels, and its log opened a connection to each of them."""
    with running(Options(nodes=())) as cluster:
        pods = await _submitted(cluster.url, nodes)
        await asyncio.to_thread(_replace, cluster, pods)
        for number in range(forged):
            await asyncio.to_thread(_run, cluster, pods[0], f"fake-{number}", number + 2)
        front = Front(cluster.url)
        async with front.opened() as url:
            told = await _follow(url, files, nodes)

    assert told == {"failed": 0, "lines": sorted(f"[rank {node} out] late of {node}" for node in range(nodes))}
    assert front.most <= streams
