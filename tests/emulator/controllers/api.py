"""A small client of the Kubernetes API over plain HTTP: what the controllers need, and nothing that they do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

__all__ = ["Api", "ApiError", "Kind", "Object"]

Object = dict[str, Any]

_MERGE = {"Content-Type": "application/merge-patch+json"}
_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


class ApiError(Exception):
    """The API server said no: `status` is HTTP's, `reason` Kubernetes' (`NotFound`, `AlreadyExists`, `Invalid`, ...)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Kind:
    """A kind of object, as the API's paths name it: `v1` or `group/version`, and the plural."""

    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of all objects, of those of a namespace, or of one."""
        root = f"/api/{self.version}" if "/" not in self.version else f"/apis/{self.version}"
        middle = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "")


class Api:
    """One API server, with or without a bearer token."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._kinds: dict[tuple[str, str], Kind] = {}

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=None, connect=30))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._session is not None
        await self._session.close()

    async def kind_of(self, api_version: str, kind: str) -> Kind:
        """Return where objects of a kind are; raises `ApiError` with reason `NoMatch` where the server knows none."""
        if (api_version, kind) not in self._kinds:
            root = "/api" if "/" not in api_version else "/apis"
            try:
                known = (await self._request("GET", f"{root}/{api_version}"))["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise
                known = []
            found = [resource for resource in known if resource["kind"] == kind and "/" not in resource["name"]]
            if not found:
                raise ApiError(404, "NoMatch", f"no matches for kind {kind} in version {api_version}")
            self._kinds[api_version, kind] = Kind(api_version, found[0]["name"], found[0]["namespaced"])
        return self._kinds[api_version, kind]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object, or None where there is none."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        """Return the objects with these labels, each with its kind, and the version of the list."""
        query = {"labelSelector": labels} if labels else {}
        found = await self._request("GET", kind.path(namespace), query=query)
        return found.get("items") or [], found["metadata"]["resourceVersion"]

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Create an object."""
        return await self._request("POST", kind.path(namespace), body=body)

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Object, *, part: str = "", strategic: bool = False
    ) -> Object:
        """Merge `body` into an object, or into a part of it such as `status`; `strategic` merges lists by their keys."""
        path = kind.path(namespace, name) + (f"/{part}" if part else "")
        return await self._request("PATCH", path, body=body, headers=_STRATEGIC if strategic else _MERGE)

    async def delete(self, kind: Kind, found: Object, *, now: bool = False) -> None:
        """Delete this very object, in the background, without its grace if `now`; it does not matter if it is gone."""
        metadata = found["metadata"]
        options: Object = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
        options |= {"gracePeriodSeconds": 0} if now else {}
        try:
            await self._request("DELETE", kind.path(metadata.get("namespace", ""), metadata["name"]), body=options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield what happens to the objects of a kind after `version`, until the server ends the stream."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "300"}
        assert self._session is not None
        async with self._session.get(self._url + kind.path(), params=query) as answer:
            if answer.status >= 400:
                raise _refused(answer.status, await answer.read())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("reason", ""), "the watch ended")
                    yield event["type"], event["object"]

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> Object:
        assert self._session is not None
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | (headers or {}) if data is not None else {}
        async with self._session.request(method, self._url + path, params=query, data=data, headers=sent) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise _refused(answer.status, text)
            found: Object = json.loads(text)
            return found


def _refused(status: int, text: bytes) -> ApiError:
    try:
        told = json.loads(text)
        return ApiError(status, told.get("reason", ""), told.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.decode(errors="replace")[:200])
