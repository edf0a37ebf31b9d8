"""Machines that a pod must not run on, as node affinity. Pure."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ANYWHERE", "HOSTNAME", "Exclusion", "with_others", "without_hosts"]

#: The label by which Kubernetes knows a machine; not always the name of its Node.
HOSTNAME = "kubernetes.io/hostname"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


#: Of all the preferences of a pod for machines this one weighs most: Kubernetes allows 1 to 100.
_WEIGHT = 100


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Machines that a pod must not be scheduled to (`required`), and those that it had better not be (`preferred`)."""

    required: frozenset[str] = frozenset()
    preferred: frozenset[str] = frozenset()


#: A pod that keeps off no machine.
ANYWHERE = Exclusion()


def without_hosts(affinity: Mapping[str, Any], off: Exclusion) -> dict[str, Any]:
    """Return `affinity` for pods that keep off the machines of `off` as well.

    The terms of a node affinity are alternatives, so each of them must name the hosts: one that does not would let them in.
    """
    merged = copy.deepcopy(dict(affinity))
    if off.preferred:
        preferred = merged.setdefault("nodeAffinity", {}).setdefault(_PREFERRED, [])
        preferred.append({"weight": _WEIGHT, "preference": {"matchExpressions": [_not_in(off.preferred)]}})
    if not off.required:
        return merged
    required = merged.setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:
        term["matchExpressions"] = [*term.get("matchExpressions", ()), _not_in(off.required)]
    return merged


def with_others(affinity: Mapping[str, Any], label: str, value: str) -> dict[str, Any]:
    """Return `affinity` for pods that run on the machine of the other pods with a label; the first of them may run anywhere."""
    merged = copy.deepcopy(dict(affinity))
    required = merged.setdefault("podAffinity", {}).setdefault(_REQUIRED, [])
    required.append({"labelSelector": {"matchLabels": {label: value}}, "topologyKey": HOSTNAME})
    return merged


def _not_in(hosts: Collection[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "NotIn", "values": sorted(hosts)}
