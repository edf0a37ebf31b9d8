"""What each built-in kind does to an object before it is stored: defaults, and what an update may not change."""

from __future__ import annotations

import base64
from typing import Any

from tests.emulator.bodies import Body, clone
from tests.emulator.resources import Resource
from tests.emulator.validation import Cause

__all__ = ["fill", "forbidden_changes", "keep_status"]

#: Taints that a pod tolerates for five minutes unless it says otherwise.
PATIENT_WITH = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def fill(resource: Resource, body: Body) -> None:
    """Put the defaults in; on a create the status that the server gives is set by `keep_status`."""
    if resource.key == "pods":
        _fill_pod(body)
    elif resource.key == "secrets":
        body.setdefault("type", "Opaque")
        encoded = {
            key: base64.b64encode(value.encode()).decode() for key, value in (body.pop("stringData", None) or {}).items()
        }
        if encoded:
            body["data"] = {**(body.get("data") or {}), **encoded}
    elif resource.key == "services":
        spec = body.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
    elif resource.key == "namespaces":
        body.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        body["metadata"].setdefault("labels", {}).setdefault("kubernetes.io/metadata.name", body["metadata"]["name"])
    elif resource.key == "nodes":
        body.setdefault("spec", {})


def _fill_pod(body: Body) -> None:
    spec = body.get("spec")
    if not isinstance(spec, dict):
        spec = body["spec"] = {}
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("serviceAccountName", "default"),
        ("enableServiceLinks", True),
    ):
        spec.setdefault(field, value)
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("securityContext", {})
    tolerations = spec.setdefault("tolerations", [])
    for taint in PATIENT_WITH:
        if not any(one.get("key") in {taint, None} and one.get("effect") in {"NoExecute", None, ""} for one in tolerations):
            tolerations.append({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _fill_container(container)


def _fill_container(container: Body) -> None:
    tag = str(container.get("image") or "").rpartition(":")[2]
    container.setdefault("imagePullPolicy", "Always" if tag == "latest" else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for variable in container.get("env") or []:
        if "fieldRef" in (variable.get("valueFrom") or {}):
            variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")


def keep_status(resource: Resource, body: Body) -> None:
    """Give a new object the status that it starts with, whatever the caller wrote there."""
    first: dict[str, Body] = {
        "pods": {"phase": "Pending", "qosClass": _qos(body)},
        "namespaces": {"phase": "Active"},
        "services": {"loadBalancer": {}},
        "persistentvolumeclaims": {"phase": "Bound"},
        "resourcequotas": {"hard": clone((body.get("spec") or {}).get("hard") or {}), "used": {}},
    }
    if resource.key in first:
        body["status"] = first[resource.key]
    elif resource.has_status and resource.key != "nodes":
        body.pop("status", None)


def _qos(body: Body) -> str:
    sizes = [container.get("resources") or {} for container in (body.get("spec") or {}).get("containers") or []]
    if not any(size.get("requests") or size.get("limits") for size in sizes):
        return "BestEffort"
    full = all(
        {"cpu", "memory"} <= set(size.get("limits") or {}) and size.get("requests") == size.get("limits") for size in sizes
    )
    return "Guaranteed" if full else "Burstable"


def forbidden_changes(resource: Resource, old: Body, new: Body) -> list[Cause]:
    """What an update wants that nobody may do."""
    if resource.key == "pods":
        return _pod_changes(old["spec"], new["spec"])
    if resource.key in {"configmaps", "secrets"} and old.get("immutable"):
        if any(old.get(field) != new.get(field) for field in ("data", "binaryData", "immutable")):
            return [("data", "Forbidden: field is immutable when `immutable` is set")]
    elif resource.key == "secrets" and old.get("type") != new.get("type"):
        return [("type", f'Invalid value: "{new.get("type")}": field is immutable')]
    return []


def _pod_changes(old: Body, new: Body) -> list[Cause]:
    """A pod's spec may change in its images, its deadline, and by more tolerations and fewer gates."""
    causes: list[Cause] = []
    if not _all_of(old.get("tolerations"), new.get("tolerations")):
        causes.append(("spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds"))
    if not _all_of(new.get("schedulingGates"), old.get("schedulingGates")):
        causes.append(("spec.schedulingGates", "Forbidden: only deletion is allowed, but found new scheduling gates"))
    gated = bool(old.get("schedulingGates"))
    if _frozen(old, gated=gated) != _frozen(new, gated=gated):
        causes.append(("spec", "Forbidden: pod updates may not change fields other than the images, deadlines and tolerations"))
    return causes


def _all_of(part: list[Any] | None, whole: list[Any] | None) -> bool:
    def bare(one: Body) -> Body:
        return {key: value for key, value in one.items() if key != "tolerationSeconds"}

    return all(bare(one) in [bare(other) for other in whole or []] for one in part or [])


def _frozen(spec: Body, *, gated: bool) -> Body:
    kept = {key: value for key, value in spec.items() if key not in {"activeDeadlineSeconds", "tolerations", "schedulingGates"}}
    if gated:
        kept = {key: value for key, value in kept.items() if key not in {"nodeSelector", "affinity"}}
    for field in ("containers", "initContainers"):
        kept[field] = [{key: value for key, value in one.items() if key != "image"} for one in spec.get(field) or []]
    return kept
