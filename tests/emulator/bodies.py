"""JSON objects of the API, and the few questions that everybody asks of them."""

from __future__ import annotations

import datetime
import time
from typing import Any

__all__ = ["Body", "clone", "finalizers", "labels", "meta", "micro_stamp", "namespace_of", "owners", "stamp", "when"]

Body = dict[str, Any]


def clone(value: Any) -> Any:
    """A copy that shares no dict and no list with `value`; bodies in the store are never changed."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def meta(body: Body) -> Body:
    """The metadata, put there where it is missing."""
    if not isinstance(body.get("metadata"), dict):
        body["metadata"] = {}
    found: Body = body["metadata"]
    return found


def labels(body: Body) -> dict[str, str]:
    return (body.get("metadata") or {}).get("labels") or {}


def namespace_of(body: Body) -> str:
    return (body.get("metadata") or {}).get("namespace") or ""


def finalizers(body: Body) -> list[str]:
    return (body.get("metadata") or {}).get("finalizers") or []


def owners(body: Body) -> list[Body]:
    return (body.get("metadata") or {}).get("ownerReferences") or []


def stamp(now: float | None = None) -> str:
    """A time as metav1.Time writes it: whole seconds of UTC."""
    moment = datetime.datetime.fromtimestamp(time.time() if now is None else now, tz=datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(now: float | None = None) -> str:
    """A time as logs and metav1.MicroTime write it; logs have nine digits, of which this clock knows six."""
    moment = datetime.datetime.fromtimestamp(time.time() if now is None else now, tz=datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def when(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    head, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(head if "+" in head[10:] else head + "+00:00")
    return moment.timestamp() + (float("0." + fraction) if fraction.isdigit() else 0.0)
