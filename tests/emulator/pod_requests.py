"""Subresources that do something: a pod's log, the way through to its port, its eviction and its binding; tokens."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import aiohttp
from aiohttp import web

from tests.emulator.access import Access
from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, stamp, when
from tests.emulator.errors import ApiError, bad_request
from tests.emulator.kubelet.cluster import Cluster
from tests.emulator.kubelet.logs import ContainerLog, Line
from tests.emulator.kubelet.pod import PodRun
from tests.emulator.kubelet.status import conditioned
from tests.emulator.paths import Asked
from tests.emulator.reading import flag, number, read_body
from tests.emulator.server import Server, Subresource

__all__ = ["PodRequests"]

#: Headers that a proxy does not pass on. The API server keeps the caller's credentials to itself.
NOT_PASSED = {
    "authorization",
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}

#: Seconds until a port that does not answer is given up.
PROXY_TIMEOUT = 30.0

#: Seconds.
_ROUNDED = 1e-6


class PodRequests:
    """The handlers of subresources, by name."""

    def __init__(self, api: Api, access: Access, server: Server, cluster: Cluster) -> None:
        self._api, self._access, self._server, self._cluster = api, access, server, cluster
        self.texts: dict[tuple[str, str], str] = {}
        """Logs of pods that no kubelet runs: whatever the caller says they wrote."""

    def handlers(self) -> dict[str, Subresource]:
        return {
            "pods/log": self.log,
            "pods/proxy": self.proxy,
            "pods/eviction": self.evict,
            "pods/binding": self.bind,
            "serviceaccounts/token": self.token,
            "namespaces/finalize": self.finalize,
        }

    # ---------------------------------------------------------------------------------------------------------------- log

    async def log(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        pod = self._api.get(asked.resource, asked.namespace, asked.name).body
        container = self._container(request, pod)
        node = self._cluster.nodes.get(pod["spec"].get("nodeName") or "")
        if node is None:
            if self._cluster.active and not pod["spec"].get("nodeName"):
                raise bad_request(f"pod {asked.name} does not have a host assigned")
            return web.Response(text=self.texts.get((asked.namespace, asked.name), ""))
        if not node.connected:
            raise ApiError(500, "InternalError", f'Get "https://{node.address}:10250/containerLogs": dial tcp: i/o timeout')
        return await self._log_of(request, asked, self._cluster.run_of(pod), container)

    async def _log_of(self, request: web.Request, asked: Asked, run: PodRun | None, container: str) -> web.StreamResponse:
        state = run.state(container) if run else None
        previous = flag(request, "previous")
        log = (state.previous_log if previous else state.log) if state else None
        if state is None or (log is None and not previous) or (state.waiting and not state.last and not previous):
            why = (state.waiting or {}).get("reason", "ContainerCreating") if state else "ContainerCreating"
            raise bad_request(f'container "{container}" in pod "{asked.name}" is waiting to start: {why}')
        if log is None:
            raise bad_request(f'previous terminated container "{container}" in pod "{asked.name}" not found')
        lines = _chosen(request, log)
        timestamps, limit = flag(request, "timestamps"), number(request, "limitBytes")
        text = b"".join(line.shown(timestamps=timestamps) for line in lines)
        if not flag(request, "follow"):
            return web.Response(body=text if limit is None else text[:limit], content_type="text/plain")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        user = self._access.user_of(request.headers.get("Authorization", ""))
        cut = self._server.faults.hit("cut", asked, user)
        send = functools.partial(_follow, response, log, text, timestamps=timestamps)
        await self._server.stream(request, response, send, cut.seconds if cut else None)
        return response

    def _container(self, request: web.Request, pod: Body) -> str:
        spec = pod["spec"]
        names = [one["name"] for one in [*spec["containers"], *(spec.get("initContainers") or [])]]
        asked = request.query.get("container", "")
        if not asked and len(spec["containers"]) > 1:
            raise bad_request(f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: {names}")
        if asked and asked not in names:
            raise bad_request(f"container {asked} is not valid for pod {pod['metadata']['name']}")
        return asked or str(names[0])

    # -------------------------------------------------------------------------------------------------------------- proxy

    async def proxy(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """Pass a request on to a port of the pod, and its answer back, whatever it is."""
        scheme, name, port = _port_of(asked.name)
        pod = self._api.get(asked.resource, asked.namespace, name).body
        address = (pod.get("status") or {}).get("podIP")
        node = self._cluster.nodes.get(pod["spec"].get("nodeName") or "")
        if not address:
            raise bad_request(f"address not allowed: pod {name} has no IP")
        port = port or str(_first_port(pod))
        if node and not node.connected:
            await asyncio.sleep(PROXY_TIMEOUT if node.silent else 0.0)  # nobody refuses a connection to a machine without power
            raise _no_way(f"dial tcp {address}:{port}: i/o timeout")
        url = f"{scheme or 'http'}://{address}:{port}/{asked.rest}"
        if request.query_string:
            url += f"?{request.query_string}"
        headers = {key: value for key, value in request.headers.items() if key.lower() not in NOT_PASSED}
        timeout = aiohttp.ClientTimeout(total=PROXY_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
                # As the API server, which has no certificate and accepts any.
                session.request(request.method, url, headers=headers, data=await request.read(), ssl=False) as answer,
            ):
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in NOT_PASSED}
                return web.Response(body=await answer.read(), status=answer.status, headers=kept)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _no_way(f"error trying to reach service: {error}") from None

    # --------------------------------------------------------------------------------------------------- eviction, binding

    async def evict(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        body = await _json(request)
        pod = self._api.get(asked.resource, asked.namespace, asked.name).body
        self.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting", body.get("deleteOptions") or {})
        return web.json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, status=201
        )

    def disrupt(self, pod: Body, reason: str, message: str, options: Body) -> None:
        """Mark a pod as the target of a disruption, and delete it."""
        new = clone(pod)
        conditions = (new.get("status") or {}).get("conditions") or []
        new["status"]["conditions"] = conditioned(conditions, "DisruptionTarget", True, reason, message)
        pods = self._api.kind("pods")
        self._api.update(pods, pod, new, subresource="status")
        self._api.delete(pods, pod["metadata"]["namespace"], pod["metadata"]["name"], options)

    async def bind(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        body = await _json(request)
        pod = self._api.get(asked.resource, asked.namespace, asked.name).body
        self._cluster.bind(pod, (body.get("target") or {}).get("name") or "")
        return web.json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, status=201
        )

    async def token(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        body = await _json(request)
        spec = body.get("spec") or {}
        expires = stamp(time.time() + spec.get("expirationSeconds", 3600))
        status = {"token": self._access.token_of(asked.namespace, asked.name), "expirationTimestamp": expires}
        told = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {},
            "spec": spec,
            "status": status,
        }
        return web.json_response(told, status=201)

    async def finalize(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        return web.json_response(self._api.get(asked.resource, "", asked.name).body)


def _chosen(request: web.Request, log: ContainerLog) -> list[Line]:
    lines = list(log.lines)
    if since := request.query.get("sinceTime"):
        # A stamp is rounded to whole microseconds, so it may be a little later than its line.
        lines = [line for line in lines if line.time >= when(since) - _ROUNDED]
    if (seconds := number(request, "sinceSeconds")) is not None:
        lines = [line for line in lines if line.time >= time.time() - seconds]
    tail = number(request, "tailLines")
    return lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]


async def _follow(response: web.StreamResponse, log: ContainerLog, first: bytes, *, timestamps: bool) -> None:
    position = log.end()
    if first:
        await response.write(first)
    while True:
        await log.follow(position)
        lines = log.after(position)
        position = log.end()
        if lines:
            await response.write(b"".join(line.shown(timestamps=timestamps) for line in lines))
        elif log.closed:
            return


def _port_of(name: str) -> tuple[str, str, str]:
    """The scheme, the name and the port in `[https:]NAME[:PORT]`."""
    parts = name.split(":")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "http", parts[0], parts[1] if len(parts) == 2 else ""


def _first_port(pod: Body) -> int:
    ports = [port["containerPort"] for one in pod["spec"]["containers"] for port in one.get("ports") or []]
    return ports[0] if ports else 80


def _no_way(why: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", why)


async def _json(request: web.Request) -> Any:
    body = (await read_body(request))[1]
    return body if isinstance(body, dict) else {}
