"""What the API server answers where it refuses: Status objects, with the codes and reasons of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.emulator.resources import Resource

__all__ = [
    "ApiError",
    "already_exists",
    "bad_request",
    "conflict",
    "expired",
    "forbidden",
    "invalid",
    "not_found",
    "success",
    "too_large",
    "unknown_path",
    "unsupported",
]


class ApiError(Exception):
    """A refusal, to be answered as a Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = details or {}, headers or {}

    def body(self) -> dict[str, Any]:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return {**status, "details": self.details} if self.details else status


def _told(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _details(resource: Resource, name: str) -> dict[str, Any]:
    return {"name": name, "kind": resource.plural, **({"group": resource.group} if resource.group else {})}


def success(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    details = {**_details(resource, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{_told(resource)} "{name}" not found', details=_details(resource, name))


def unknown_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{_told(resource)} "{name}" already exists', details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {_told(resource)} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(resource, name))


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str]]) -> ApiError:
    """422: each cause is a field and what is wrong with it."""
    told = [{"reason": "FieldValueInvalid", "message": what, "field": field} for field, what in causes]
    listed = ", ".join(f"{field}: {what}" for field, what in causes)
    shown = listed if len(causes) == 1 else f"[{listed}]"
    details = {"name": name, "kind": resource.kind, "group": resource.group, "causes": told}
    owner = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(422, "Invalid", f'{owner} "{name}" is invalid: {shown}', details=details)


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    who = f'{_told(resource)} "{name}" is forbidden' if name else f"{_told(resource)} is forbidden"
    return ApiError(403, "Forbidden", f"{who}: {why}", details=_details(resource, name))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unsupported(content_type: str, allowed: Sequence[str]) -> ApiError:
    known = f"accepted media types include: {', '.join(allowed)}"
    message = f"the body of the request was in an unknown format ({content_type}) - {known}"
    return ApiError(415, "UnsupportedMediaType", message)


def expired(asked: int, oldest: int) -> ApiError:
    """410: the history since `asked` was compacted away."""
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> ApiError:
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    causes = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    return ApiError(504, "Timeout", message, details={**causes, "retryAfterSeconds": 1})
