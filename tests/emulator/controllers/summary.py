"""What an AppWrapper's controller counts: its pods by phase, the codes that they ended with, and its components. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.emulator.controllers.settings import Settings

__all__ = ["Components", "Pods", "count_components", "count_pods"]

#: Kinds whose own `Failed` condition is believed.
_BELIEVED = {("batch", "Job"), ("kubeflow.org", "PyTorchJob")}


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Pods by phase. One that runs and is being deleted, or whose phase is `Unknown`, is counted nowhere.

    `terminal`: some code forbids a retry. `evacuated`: nodes of running pods that are flagged for what these pods use.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminal: bool = False
    evacuated: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Components:
    """Components: those that should exist, those that do and stay, and those that call themselves failed."""

    expected: int
    deployed: int
    failed: int


def count_pods(pods: Iterable[dict[str, Any]], settings: Settings, flagged: Mapping[str, frozenset[str]] | None = None) -> Pods:
    """Count pods; `flagged` are the resources, by node, that must be used there no more."""
    by_phase = {"Pending": 0, "Running": 0, "Succeeded": 0, "Failed": 0}
    terminal, evacuated = False, set()
    for pod in pods:
        phase = pod.get("status", {}).get("phase", "")
        if phase == "Running":
            if "deletionTimestamp" in pod["metadata"]:
                continue
            node = pod.get("spec", {}).get("nodeName", "")
            if _uses(pod) & (flagged or {}).get(node, frozenset()):
                evacuated.add(node)
        if phase == "Failed" and _terminal(pod, settings):
            terminal = True
        if phase in by_phase:
            by_phase[phase] += 1
    counts = {phase.lower(): count for phase, count in by_phase.items()}
    return Pods(**counts, terminal=terminal, evacuated=frozenset(evacuated))


def count_components(components: Iterable[dict[str, Any] | None]) -> Components:
    """Count components: None stands for one that does not exist."""
    objects = list(components)
    present = [found for found in objects if found is not None]
    deployed = [found for found in present if "deletionTimestamp" not in found["metadata"]]
    return Components(expected=len(objects), deployed=len(deployed), failed=sum(map(_failed, present)))


def _failed(component: dict[str, Any]) -> bool:
    if (component["apiVersion"].split("/")[0], component["kind"]) not in _BELIEVED:
        return False
    conditions = component.get("status", {}).get("conditions", [])
    return any(c["type"] == "Failed" and c["status"] == "True" for c in conditions)


def _terminal(pod: dict[str, Any], settings: Settings) -> bool:
    """Return whether a code of a failed pod forbids a retry; a pod without any (evicted, say) never does."""
    states = (status.get("state", {}).get("terminated") for status in pod["status"].get("containerStatuses", []))
    codes = {state["exitCode"] for state in states if state is not None} - {0}
    retryable = settings.retryable_exit_codes
    return bool(codes & settings.terminal_exit_codes) or bool(retryable and codes - retryable)


def _uses(pod: dict[str, Any]) -> set[str]:
    """Return the resources of which a pod's containers want more than none."""
    wanted = set()
    for container in pod.get("spec", {}).get("containers", []):
        resources = container.get("resources", {})
        for amounts in (resources.get("limits", {}), resources.get("requests", {})):
            wanted |= {name for name, amount in amounts.items() if str(amount) not in {"0", ""}}
    return wanted
