"""Pods as the API server tells of them, in few words."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.views import HostView, host_view

__all__ = ["JOB", "condition", "ended", "host_of", "pod", "running", "status_of", "waiting"]

JOB = JobRef(name="digits", uid="0123456789abcdef", namespace="default", owner="owner")


def pod(
    *,
    node: int = 0,
    attempt: int = 1,
    incarnation: int = 1,
    phase: str = "Running",
    host: str = "host-a",
    version: str = "1",
    uid: str = "",
    containers: tuple[dict[str, Any], ...] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    deleting: bool = False,
    spec: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """The pod of a node, or with `node` -1 that of a coordinator of the term `incarnation`."""
    part, main = (Part.NODE, "trainer") if node >= 0 else (Part.COORDINATOR, "coordinator")
    its = labels(JOB, part, attempt=attempt, node=node if node >= 0 else None, incarnation=incarnation)
    name = f"digits-a{attempt}-n{node}-{incarnation}" if node >= 0 else f"digits-c{incarnation}"
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": version,
            "labels": its,
            **({"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleting else {}),
        },
        "spec": {"containers": [{"name": main}], **({"nodeName": host} if host else {}), **(spec or {})},
        "status": {
            "phase": phase,
            "podIP": "10.0.0.1" if host else "",
            "conditions": list(conditions),
            "containerStatuses": [running(main)] if containers is None else list(containers),
            **status,
        },
    }


def running(name: str = "trainer") -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}


def waiting(reason: str, message: str = "", name: str = "trainer") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def ended(code: int, reason: str = "Error", message: str = "", name: str = "trainer") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}


def condition(kind: str, reason: str, message: str = "", *, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def status_of(code: int, reason: str, message: str) -> dict[str, Any]:
    """A refusal of the API server."""
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def host_of(node: dict[str, Any]) -> HostView:
    """Return what is kept of a machine."""
    found = host_view(node)
    assert found is not None
    return found
