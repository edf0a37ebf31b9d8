"""Requests as values: bodies of every media type, query parameters, lists in pages."""

from __future__ import annotations

import base64
import json
from typing import Any

import yaml
from aiohttp import web

from tests.emulator.api import Api
from tests.emulator.bodies import Body
from tests.emulator.errors import ApiError, bad_request, too_large, unsupported
from tests.emulator.paths import Asked
from tests.emulator.selectors import selector
from tests.emulator.store import Version

__all__ = ["flag", "list_bytes", "number", "read_body", "revision_of"]

JSON, YAML = "application/json", "application/yaml"
PATCHES = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}


async def read_body(request: web.Request) -> tuple[str, Any]:
    """The kind of patch, or "" for a whole object, and the body; None where there is none."""
    content = request.content_type
    raw = await request.read()
    patch = PATCHES.get(content, "")
    if request.method == "PATCH" and not patch:
        raise unsupported(content, list(PATCHES))
    if not raw:
        return patch, None
    try:
        if patch == "apply" or content in {YAML, "application/x-yaml"}:
            return patch, yaml.safe_load(raw)
        if patch or content in {JSON, "application/octet-stream", "text/plain"}:
            return patch, json.loads(raw)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"error decoding the body: {error}") from None
    raise unsupported(content, [JSON, YAML])


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in {"1", "true"}


def number(request: web.Request, name: str) -> int | None:
    """A whole number of the query; None where it is not given."""
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"{name}: invalid value {text!r}: a whole number is needed") from None


def revision_of(request: web.Request, api: Api) -> int:
    """The version that a list or a watch is asked for; 0 for any. One that is not there yet is a Timeout."""
    asked = number(request, "resourceVersion") or 0
    if asked > api.store.revision:
        raise too_large(asked, api.store.revision)
    return asked


def list_bytes(request: web.Request, api: Api, asked: Asked) -> bytes:
    """The list that is asked for, or one page of it."""
    revision_of(request, api)
    resource = asked.resource
    matches = selector(resource.key, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    found = [version for version in api.store.all(resource.key, asked.namespace) if matches(version.body)]
    metadata: Body = {"resourceVersion": str(api.store.revision)}
    if token := request.query.get("continue"):
        metadata["resourceVersion"], after = _read_token(token, api)
        found = [version for version in found if (version.namespace, version.name) > after]
    limit = number(request, "limit")
    if limit and len(found) > limit:
        metadata["continue"] = _token(metadata["resourceVersion"], found[limit - 1])
        metadata["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
    # As the real server, without kind and apiVersion in the items of built-in kinds: the store puts these first.
    prefix = (
        b""
        if resource.custom
        else json.dumps({"kind": resource.kind, "apiVersion": resource.api_version}, separators=(",", ":"))[1:-1].encode()
        + b","
    )
    items = b",".join(b"{" + version.encoded()[1 + len(prefix) :] for version in found)
    return json.dumps(head)[:-1].encode() + b',"items":[' + items + b"]}"


def _token(revision: str, last: Version) -> str:
    return base64.urlsafe_b64encode(json.dumps([revision, last.namespace, last.name]).encode()).decode()


def _read_token(token: str, api: Api) -> tuple[str, tuple[str, str]]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise bad_request("continue key is not valid") from None
    if int(revision) < api.store.compacted:
        raise ApiError(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
    return revision, (namespace, name)
