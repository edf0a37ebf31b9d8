"""AppWrapper's machine, as the reference controller has it: one look in, one step out. Pure.

The departures of that controller from its own documentation are kept, since it is what people have installed: the retry pause
counts from the detection of the failure, the success TTL from the deployment, and the delay before a failed wrapper is deleted
is taken twice. A step is made of one look; the caller makes steps until one asks it to wait (`Step.after`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.controllers import conditions
from tests.emulator.controllers.podsets import expected_pods, pod_sets
from tests.emulator.controllers.settings import Settings
from tests.emulator.controllers.summary import Pods, count_components, count_pods

__all__ = ["FINALIZER", "LABEL", "MANAGER", "Creation", "Look", "Step", "step"]

FINALIZER = "workload.codeflare.dev/finalizer"
LABEL = "workload.codeflare.dev/appwrapper"
MANAGER = "workload.codeflare.dev/appwrapper-controller"


@dataclass(frozen=True, kw_only=True)
class Creation:
    """How the creation of the components went; `error` is "" where all of them stand."""

    error: str = ""
    fatal: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the controller sees of one wrapper.

    Attributes:
        wrapper: the object itself.
        components: as they are in the API, by their index; None where there is none.
        pods: those with the wrapper's label.
        flagged: resources that must be used no more, by node.
        creation: how the creation went that the last step asked for; None where it asked for none.
        settings: of this wrapper, at the controller's pace.
        now: seconds since the epoch.
    """

    wrapper: dict[str, Any]
    components: tuple[dict[str, Any] | None, ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    flagged: Mapping[str, frozenset[str]] = field(default_factory=dict)
    creation: Creation | None = None
    settings: Settings
    now: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is to be done now.

    Attributes:
        status: the wrapper's new status.
        after: seconds until the next look; 0 is at once, None only when something changes.
        create: create the components, and look again with the outcome.
        delete: indexes of the components to delete, and `delete_now` without their grace.
        kill_pods: delete the wrapper's pods without their grace.
        finalizer: True to add ours, False to take it away, None to leave it.
        event: (reason, message) for people.
    """

    status: dict[str, Any]
    after: float | None = None
    create: bool = False
    delete: tuple[int, ...] = ()
    delete_now: bool = False
    kill_pods: bool = False
    finalizer: bool | None = None
    event: tuple[str, str] | None = None


def step(look: Look) -> Step:
    """Return what the controller does about a wrapper that it sees so."""
    draft = _Draft(look)
    spec = look.wrapper["spec"]
    if spec.get("managedBy") not in {None, MANAGER}:
        return draft.done()
    if "deletionTimestamp" in look.wrapper["metadata"]:
        return _terminating(draft)
    if draft.phase in {"Resuming", "Running", "Resetting"} and draft.suspended:
        draft.phase = "Suspending"
        return draft.again(event=("Suspending", "spec.suspend was set"))
    return _PHASES[draft.phase](draft)


class _Draft:
    """A look, and the status that is being written from it."""

    def __init__(self, look: Look) -> None:
        self.look, self.now, self.settings = look, look.now, look.settings
        self.status: dict[str, Any] = copy.deepcopy(look.wrapper.get("status", {}))
        self.status.setdefault("conditions", [])
        self.suspended: bool = look.wrapper["spec"].get("suspend", False)

    @property
    def phase(self) -> str:
        phase: str = self.status.get("phase", "")
        return phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self.status["phase"] = phase

    def holds(self, kind: str) -> bool:
        return conditions.holds(self.status["conditions"], kind)

    def since(self, kind: str) -> float:
        return conditions.since(self.status["conditions"], kind, self.now)

    def set(self, kind: str, reason: str, *, value: bool, message: str = "") -> None:
        self.status["conditions"] = conditions.with_condition(
            self.status["conditions"], kind, reason, value=value, now=self.now, message=message
        )

    def wait(self, seconds: float) -> Step:
        return Step(status=self.status, after=max(seconds, 0.001))

    def again(self, event: tuple[str, str] | None = None, *, finalizer: bool | None = None) -> Step:
        return Step(status=self.status, after=0.0, event=event, finalizer=finalizer)

    def done(self) -> Step:
        return Step(status=self.status)


# --- Before it runs --------------------------------------------------------------------------------------------------------


def _empty(draft: _Draft) -> Step:
    counted = []
    for component in draft.look.wrapper["spec"]["components"]:
        template = component["template"]
        counted.append(
            {
                "name": template["metadata"]["name"],
                "kind": template["kind"],
                "apiVersion": template["apiVersion"],
                "podSets": pod_sets(component),
                "conditions": [],
            }
        )
    draft.status["componentStatus"] = counted
    draft.phase = "Suspended"
    return draft.again()


def _suspended(draft: _Draft) -> Step:
    if draft.suspended:
        return draft.done()
    draft.set("QuotaReserved", "Resuming", value=True)
    draft.set("ResourcesDeployed", "Resuming", value=True)
    draft.set("PodsReady", "Resuming", value=False)
    draft.set("Unhealthy", "Resuming", value=False)
    draft.phase = "Resuming"
    return draft.again(finalizer=True)


def _resuming(draft: _Draft) -> Step:
    creation = draft.look.creation
    if creation is None:
        return Step(status=draft.status, after=0.0, create=True)
    if not creation.error:
        for component in draft.status["componentStatus"]:
            component["conditions"] = _deployed(component, draft, value=True)
        draft.phase = "Running"
        return draft.again()
    if creation.fatal:
        draft.set("Unhealthy", "CreateFailed", value=True, message=creation.error)
        draft.phase = "Failed"
        return draft.again(event=("Unhealthy", f"CreateFailed: {creation.error}"))
    if draft.now < draft.since("ResourcesDeployed") + draft.settings.admission:
        return draft.wait(draft.settings.creation_retry)
    draft.set("Unhealthy", "CreateFailed", value=True, message=creation.error)
    return _reset_or_fail(draft, terminal=False, what=f"CreateFailed: {creation.error}")


def _deployed(component: dict[str, Any], draft: _Draft, *, value: bool) -> list[dict[str, Any]]:
    reason = "ComponentCreated" if value else "ComponentDeleted"
    return conditions.with_condition(component["conditions"], "ResourcesDeployed", reason, value=value, now=draft.now)


# --- It runs ---------------------------------------------------------------------------------------------------------------


def _running(draft: _Draft) -> Step:
    components = count_components(draft.look.components)
    pods = count_pods(draft.look.pods, draft.settings, draft.look.flagged)
    expected = expected_pods(draft.status["componentStatus"])
    if components.deployed != components.expected:
        missing = f"found {components.deployed} of {components.expected} components"
        draft.set("Unhealthy", "MissingComponent", value=True, message=missing)
        draft.phase = "Failed"
        return draft.again(event=("Unhealthy", f"MissingComponent: {missing}"))
    if components.failed:
        draft.set("Unhealthy", "FailedComponent", value=True, message=f"{components.failed} components failed")
        return _reset_or_fail(draft, terminal=pods.terminal, what="FailedComponent")
    if pods.succeeded >= expected and pods.pending + pods.running + pods.failed == 0:
        draft.set("QuotaReserved", "Succeeded", value=False)
        draft.set("ResourcesDeployed", "Succeeded", value=True)
        draft.phase = "Succeeded"
        return draft.again()
    if pods.failed:
        return _failed_pods(draft, pods)
    if pods.evacuated:
        nodes = ", ".join(sorted(pods.evacuated))
        draft.set("Unhealthy", "AutopilotNoExecute", value=True, message=nodes)
        return _reset_or_fail(draft, terminal=False, cost=0, what=f"AutopilotNoExecute: {nodes}")
    return _ready(draft, pods, expected)


def _failed_pods(draft: _Draft, pods: Pods) -> Step:
    draft.set("Unhealthy", "FoundFailedPods", value=True)
    left = draft.since("Unhealthy") + draft.settings.failure - draft.now
    if left > 0:
        return draft.wait(left)
    return _reset_or_fail(draft, terminal=pods.terminal, what=f"FoundFailedPods: {pods.failed} failed pods")


def _ready(draft: _Draft, pods: Pods, expected: int) -> Step:
    if draft.holds("Unhealthy"):
        draft.set("Unhealthy", "FoundNoFailedPods", value=False)
    if pods.running + pods.succeeded >= expected:
        draft.set("PodsReady", "SufficientPodsReady", value=True, message=f"{pods.running + pods.succeeded} pods")
        return draft.wait(draft.settings.running_poll)
    if draft.holds("PodsReady"):
        draft.set("PodsReady", "InsufficientPodsReady", value=False)
    exist = pods.pending + pods.running + pods.succeeded >= expected
    grace = draft.settings.warmup if exist else draft.settings.admission
    left = draft.since("ResourcesDeployed") + grace - draft.now
    if left > 0:
        return draft.wait(min(left, draft.settings.starting_poll))
    draft.set("Unhealthy", "InsufficientPodsReady", value=True)
    return _reset_or_fail(draft, terminal=False, what="InsufficientPodsReady")


def _reset_or_fail(draft: _Draft, *, terminal: bool, what: str, cost: int = 1) -> Step:
    spent: int = draft.status.get("resettingCount", 0)
    if terminal or spent >= draft.settings.retry_limit:
        draft.phase = "Failed"
    else:
        draft.status["resettingCount"] = spent + cost
        draft.phase = "Resetting"
    return draft.again(event=("Unhealthy", what))


# --- It ends, or begins again ----------------------------------------------------------------------------------------------


def _resetting(draft: _Draft) -> Step:
    draft.set("PodsReady", "Resetting", value=False)
    if draft.holds("ResourcesDeployed"):
        unfinished = _delete(draft)
        if unfinished is not None:
            return unfinished
        draft.set("ResourcesDeployed", "Resetting", value=False)
    left = draft.since("Unhealthy") + draft.settings.retry_pause - draft.now
    if left > 0:
        return draft.wait(left)
    draft.set("ResourcesDeployed", "Resuming", value=True)
    draft.phase = "Resuming"
    return draft.again()


def _suspending(draft: _Draft) -> Step:
    if draft.holds("ResourcesDeployed"):
        unfinished = _delete(draft)
        if unfinished is not None:
            return unfinished
    for kind in ("ResourcesDeployed", "QuotaReserved", "PodsReady", "Unhealthy"):
        draft.set(kind, "Suspended", value=False)
    draft.phase = "Suspended"
    return draft.again()


def _failed(draft: _Draft) -> Step:
    if not draft.holds("ResourcesDeployed"):
        return draft.done()
    delay = draft.settings.deletion_on_failure
    if delay > 0 and not draft.suspended:
        draft.set("DeletingResources", "DeletionPaused", value=False)
        left = draft.since("DeletingResources") + delay - draft.now
        if left > 0:
            return draft.wait(left)
    unfinished = _delete(draft)
    if unfinished is not None:
        return unfinished
    draft.set("ResourcesDeployed", "Failed", value=False)
    draft.set("QuotaReserved", "Failed", value=False)
    return draft.done()


def _succeeded(draft: _Draft) -> Step:
    if not draft.holds("ResourcesDeployed"):
        return draft.done()
    left = draft.since("ResourcesDeployed") + draft.settings.success_ttl - draft.now
    if left > 0:
        return draft.wait(left)
    unfinished = _delete(draft)
    if unfinished is not None:
        return unfinished
    draft.set("ResourcesDeployed", "Succeeded", value=False)
    return draft.done()


def _terminating(draft: _Draft) -> Step:
    if FINALIZER not in draft.look.wrapper["metadata"].get("finalizers", []):
        return draft.done()
    if draft.holds("ResourcesDeployed"):
        unfinished = _delete(draft)
        if unfinished is not None:
            draft.phase = "Terminating"
            return unfinished
        draft.set("ResourcesDeployed", "Terminating", value=False)
        draft.set("QuotaReserved", "Terminating", value=False)
    return Step(status=draft.status, finalizer=False)


def _delete(draft: _Draft) -> Step | None:
    """Return the next step of deleting everything, or None when no component and no pod is left."""
    draft.set("DeletingResources", "DeletionInitiated", value=True)
    left = tuple(index for index, found in enumerate(draft.look.components) if found is not None)
    for index, component in enumerate(draft.status.get("componentStatus", [])):
        if index not in left:
            component["conditions"] = _deployed(component, draft, value=False)
    if not left and not draft.look.pods:
        draft.set("DeletingResources", "DeletionComplete", value=False)
        return None
    poll = max(draft.settings.starting_poll, 0.001)
    if draft.now <= draft.since("DeletingResources") + draft.settings.forceful_deletion:
        asked = tuple(index for index in left if "deletionTimestamp" not in (draft.look.components[index] or {})["metadata"])
        return Step(status=draft.status, after=poll, delete=asked)
    if draft.look.pods:
        return Step(status=draft.status, after=poll, kill_pods=True)
    return Step(status=draft.status, after=poll, delete=left, delete_now=True)


_PHASES = {
    "": _empty,
    "Suspended": _suspended,
    "Resuming": _resuming,
    "Running": _running,
    "Resetting": _resetting,
    "Suspending": _suspending,
    "Failed": _failed,
    "Succeeded": _succeeded,
    "Terminating": _terminating,
}
