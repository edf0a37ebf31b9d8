"""Pods that run, and what the tests ask about them."""

from __future__ import annotations

import itertools
from typing import Any

from tests.emulator_tests.calls import Calls
from tests.waiting import eventually

__all__ = ["condition", "ended", "phase", "running", "start", "state", "waiting_for"]

_NUMBERS = itertools.count(1)


def start(calls: Calls, body: dict[str, Any]) -> str:
    """Create a pod; its name."""
    name = f"{body['metadata']['name']}-{next(_NUMBERS)}"
    code, made = calls.create("pods", {**body, "metadata": {**body["metadata"], "name": name}})
    assert code == 201, made
    return name


def phase(calls: Calls, name: str) -> str:
    code, body = calls.get("pods", name)
    return body["status"]["phase"] if code == 200 else "gone"


def ended(calls: Calls, name: str) -> dict[str, Any]:
    """The status of a pod when it has come to its end."""
    eventually(lambda: phase(calls, name) in {"Succeeded", "Failed"}, why=lambda: str(calls.get("pods", name)))
    found: dict[str, Any] = calls.get("pods", name)[1]["status"]
    return found


def running(calls: Calls, name: str, word: str = "") -> None:
    """Wait until a pod runs, and has written `word`."""
    eventually(lambda: phase(calls, name) == "Running", why=lambda: str(calls.get("pods", name)))
    eventually(lambda: not word or word in calls.get("pods", name, "log")[1])


def state(status: dict[str, Any], container: str = "main") -> dict[str, Any]:
    """The one state of a container, with its kind: {"is": "terminated", "exitCode": 0, ...}."""
    listed = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    found: dict[str, Any] = next((one["state"] for one in listed if one["name"] == container), {})
    return next(({"is": kind, **told} for kind, told in found.items()), {"is": ""})


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((one for one in status.get("conditions", []) if one["type"] == kind), {})


def waiting_for(calls: Calls, name: str, *reasons: str) -> dict[str, Any]:
    """Wait until a container waits for one of these reasons; its state."""

    def so() -> dict[str, Any] | None:
        found = state(calls.get("pods", name)[1]["status"])
        return found if found["is"] == "waiting" and found.get("reason") in reasons else None

    return eventually(so, why=lambda: str(calls.get("pods", name)))
