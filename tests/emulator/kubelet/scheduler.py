"""Which node a pod goes to, or why to none: decided from values, in the words of the real scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.emulator.bodies import Body, labels
from tests.emulator.quantities import quantity, requests_of

__all__ = ["place", "tolerates"]


def place(pod: Body, nodes: Sequence[Body], pods: Sequence[Body]) -> tuple[str, str]:
    """The name of the node and "", or "" and the message of the Unschedulable condition. `pods` are all that hold a node."""
    refusals: Counter[str] = Counter()
    fitting: list[tuple[int, int, str]] = []
    for node in nodes:
        name = node["metadata"]["name"]
        there = [one for one in pods if one["spec"].get("nodeName") == name]
        why = _refusals(pod, node, there) or _apart(pod, node, nodes, pods)
        refusals.update(why)
        if not why:
            fitting.append((-_preference(pod["spec"], node), len(there), name))
    if fitting:
        return min(fitting)[2], ""
    listed = ", ".join(f"{count} {why}" for why, count in sorted(refusals.items(), key=lambda one: one[0]))
    told = f"0/{len(nodes)} nodes are available" + (f": {listed}." if listed else ".")
    help_none = "Preemption is not helpful for scheduling"
    return "", f"{told} preemption: 0/{len(nodes)} nodes are available: {len(nodes)} {help_none}."


def _refusals(pod: Body, node: Body, there: Sequence[Body]) -> list[str]:
    spec = pod["spec"]
    if node["spec"].get("unschedulable") and not tolerates(
        spec, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in {"NoSchedule", "NoExecute"} and not tolerates(spec, taint):
            return [f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _selected(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return list(_short_of(spec, node, there))


def _apart(pod: Body, node: Body, nodes: Sequence[Body], pods: Sequence[Body]) -> list[str]:
    """Why a pod that must be beside others cannot be here; the first of a set that names itself may be anywhere."""
    topology = {one["metadata"]["name"]: labels(one) for one in nodes}
    affinity = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []:
        wanted = term["labelSelector"]["matchLabels"].items()
        mates = [one for one in pods if wanted <= labels(one).items() and one["spec"].get("nodeName")]
        key = term["topologyKey"]
        here = labels(node).get(key)
        places = {topology.get(one["spec"]["nodeName"], {}).get(key) for one in mates}
        near = here is not None and (here in places if mates else wanted <= labels(pod).items())
        if not near:
            return ["node(s) didn't match pod affinity rules"]
    return []


def _short_of(spec: Body, node: Body, there: Sequence[Body]) -> list[str]:
    room = {name: quantity(value) or 0.0 for name, value in (node["status"].get("allocatable") or {}).items()}
    for other in there:
        for name, amount in requests_of(other["spec"]).items():
            room[name] = room.get(name, 0.0) - amount
    short = [
        f"Insufficient {name}"
        for name, amount in sorted(requests_of(spec).items())
        if amount > 0 and amount > room.get(name, 0.0)
    ]
    return [*(["Too many pods"] if len(there) >= room.get("pods", float("inf")) else []), *short]


def tolerates(spec: Body, taint: Body) -> Body | None:
    """The toleration that lets a pod be where this taint is."""
    for one in spec.get("tolerations") or []:
        if one.get("effect") not in {None, "", taint["effect"]}:
            continue
        if one.get("operator") == "Exists" and one.get("key") in {None, "", taint["key"]}:
            return one
        if one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return one
    return None


def _selected(spec: Body, node: Body) -> bool:
    have = labels(node)
    if any(have.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_term(term, node) for term in required.get("nodeSelectorTerms") or [])


def _preference(spec: Body, node: Body) -> int:
    """How much a pod would rather be on this node: the sum of the weights of its preferences that the node meets."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    return sum(one["weight"] for one in preferred if _term(one["preference"], node))


def _term(term: Body, node: Body) -> bool:
    asked = [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
    fields = {"metadata.name": node["metadata"]["name"]}
    return bool(asked) and all(_expression(one, {**labels(node), **fields}) for one in asked)


def _expression(one: Body, have: dict[str, str]) -> bool:
    value, values = have.get(one["key"]), one.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "Gt": value is not None and value.isdigit() and bool(values) and int(value) > int(values[0]),
        "Lt": value is not None and value.isdigit() and bool(values) and int(value) < int(values[0]),
    }[one["operator"]]
