"""What AppWrapper's controller adds to a component before it creates it. Pure."""

from __future__ import annotations

import copy
from typing import Any

from tests.emulator.controllers.appwrapper_rules import LABEL
from tests.emulator.controllers.podsets import at_path, pod_sets

__all__ = ["InjectionError", "component_object"]

_HEALTH, _GPU = "autopilot.ibm.com/gpuhealth", "nvidia.com/gpu"

#: Values of the label of a host's health that its pods with GPUs must avoid, or would rather.
_AVOIDED, _DISLIKED = ["EVICT", "TESTING"], ["WARN"]

Object = dict[str, Any]


class InjectionError(ValueError):
    """What a queue adds to a pod template contradicts what stands there."""


def component_object(wrapper: Object, index: int) -> Object:
    """Return a component as it is created: owned and labelled by its wrapper, with what the queue and Autopilot ask for.

    Raises `InjectionError` and `PodSetError`, which no second try can mend.
    """
    component = copy.deepcopy(wrapper["spec"]["components"][index])
    name = wrapper["metadata"]["name"]
    for number, pod_set in enumerate(pod_sets(component)):
        template = at_path(component, pod_set["path"])
        infos = component.get("podSetInfos", [])
        _add(template.setdefault("metadata", {}), "labels", {LABEL: name})
        _inject(template, infos[number] if number < len(infos) else {})
        _avoid_bad_hosts(template.setdefault("spec", {}))
    found: Object = component["template"]
    metadata = found.setdefault("metadata", {})
    _add(metadata, "labels", {LABEL: name})
    metadata["namespace"] = wrapper["metadata"]["namespace"]
    metadata["ownerReferences"] = [
        {
            "apiVersion": wrapper["apiVersion"],
            "kind": wrapper["kind"],
            "name": name,
            "uid": wrapper["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return found


def _inject(template: Object, info: Object) -> None:
    for field in ("labels", "annotations"):
        _add(template["metadata"], field, info.get(field, {}))
    spec = template.setdefault("spec", {})
    _add(spec, "nodeSelector", info.get("nodeSelector", {}))
    for field in ("tolerations", "schedulingGates"):
        if info.get(field):
            spec[field] = [*spec.get(field, []), *info[field]]


def _add(where: Object, field: str, more: Object) -> None:
    if not more:
        return
    there = where.setdefault(field, {})
    for key, value in more.items():
        if there.get(key, value) != value:
            raise InjectionError(f"{field}: {key} is {there[key]!r} in the template and {value!r} by the queue")
    there |= more


def _avoid_bad_hosts(spec: Object) -> None:
    amounts = [c.get("resources", {}) for c in spec.get("containers", [])]
    if all(str(r.get(part, {}).get(_GPU, 0)) == "0" for r in amounts for part in ("requests", "limits")):
        return
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term.setdefault("matchExpressions", []).append({"key": _HEALTH, "operator": "NotIn", "values": _AVOIDED})
    disliked = {"matchExpressions": [{"key": _HEALTH, "operator": "NotIn", "values": _DISLIKED}]}
    preferred = affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
    preferred.append({"weight": 50, "preference": disliked})
