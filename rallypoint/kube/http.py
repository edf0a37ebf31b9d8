"""Paths and responses of a Kubernetes API server; standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rallypoint.kube.time_slices import parts
from rallypoint.wire import sanitize
from rallypoint.wire.bounds import has_more_values

__all__ = [
    "SERVICE_ACCOUNT",
    "LimitError",
    "Refusal",
    "first_bytes",
    "invalid_part",
    "json_object",
    "read_beginning",
    "read_body",
    "read_refusal",
    "refuse_compressed",
]

#: The folder in which Kubernetes mounts the credentials of a pod.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_PART = r"[A-Za-z0-9][A-Za-z0-9._:-]*"
_PATH = re.compile(rf"(?:/{_PART})+/?", re.ASCII)
_VALID = re.compile(_PART, re.ASCII)

#: JSON values of an error response with a `Status` object.
_STATUS_VALUES = 1 << 14

#: Bytes of an error response without a `Status` object that an error shows.
_SHOWN = 300


class LimitError(Exception):
    """A response is longer than its limit, or compressed."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The content of an error response: `reason` is a word such as `NotFound`, `message` a sentence; "" if missing."""

    reason: str = ""
    message: str = ""


class Response(Protocol):
    """A response of aiohttp."""

    content: Any

    @property
    def headers(self) -> Mapping[str, str]:
        """Without regard to case."""
        ...


def invalid_part(path: str) -> str | None:
    """Return the first invalid part of a request path, or None.

    Names in a path come from objects that a pod of a job may have written. With `..` or `?` in a name, the request would be for
    another object.
    """
    if _PATH.fullmatch(path) is not None:
        return None
    return next((part for part in path.split("/")[1:] if _VALID.fullmatch(part) is None), path)


def refuse_compressed(response: Response) -> None:
    """Raise `LimitError` for a compressed response: a few kilobytes of it can be gigabytes of text."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise LimitError(f"the HTTP response is compressed ({encoding[:40]!r}); expected a response without Content-Encoding")


async def read_body(response: Response, limit: int) -> bytes:
    """Return the body of a response; raises `LimitError` if it has more than `limit` bytes."""
    content = await read_beginning(response, limit + 1)
    if len(content) > limit:
        raise LimitError(f"the HTTP response has more than {limit} bytes")
    return content


async def read_beginning(response: Response, limit: int) -> bytes:
    """Return at most the first `limit` bytes of the body of a response."""
    content = bytearray()
    async for block in parts(first_bytes(response.content.iter_any(), limit)):
        content += block
    return bytes(content)


async def first_bytes(blocks: AsyncIterable[bytes], limit: int) -> AsyncIterator[bytes]:
    """Yield a stream up to `limit` bytes, and read no further."""
    async for block in blocks:
        yield block[:limit]
        limit -= len(block)
        if limit <= 0:
            return


def read_refusal(body: bytes) -> Refusal:
    """Return the content of an error response: of its `Status` object, or the beginning of any other text.

    A `Status` has few values. A body with more comes from another server, such as a script in a pod, and is not parsed.
    """
    try:
        found = None if has_more_values(body, _STATUS_VALUES) else json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Refusal(message=body[:_SHOWN].decode(errors="replace").strip())
    return Refusal(reason=str(found.get("reason") or ""), message=str(found.get("message") or ""))


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; raises `ValueError` for anything else."""
    try:
        found = sanitize.parse(body)
    except ValueError as error:
        raise ValueError(f"the response of the API server is not valid JSON: {body[:100]!r}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the response of the API server is not a JSON object: {body[:100]!r}")  # noqa: TRY004  the server's mistake
    return found
