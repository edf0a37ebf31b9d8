"""How an object goes: at once, after its grace, or when the last finalizer is off."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.emulator.bodies import Body, clone, finalizers, stamp
from tests.emulator.errors import bad_request, conflict
from tests.emulator.resources import Resource

__all__ = ["FOREGROUND", "ORPHAN", "Step", "decide"]

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a request to delete comes to: the new body, or None where it changes nothing, and whether it is the last."""

    body: Body | None
    gone: bool


def decide(resource: Resource, old: Body, options: Body) -> Step:
    """`options` are DeleteOptions; a precondition that does not hold is a conflict."""
    _check(resource, old, options)
    new = clone(old)
    metadata = new["metadata"]
    _add_policy(metadata, options)
    grace = _grace(resource, old, options)
    home = resource.key == "namespaces"  # goes when it is empty: see namespaces.py
    if not finalizers(new) and not grace and not home:
        return Step(body=new, gone=True)
    known = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or (known is not None and grace < known):
        metadata["deletionTimestamp"] = stamp(time.time() + grace)
        metadata["deletionGracePeriodSeconds"] = grace
        if home:
            new["status"] = {"phase": "Terminating"}
        if resource.generation:
            metadata["generation"] = metadata.get("generation", 0) + 1
    return Step(body=None if new == old else new, gone=False)


def _check(resource: Resource, old: Body, options: Body) -> None:
    asked, is_now = options.get("preconditions") or {}, old["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if asked.get(field) not in {None, is_now[field]}:
            why = f"Precondition failed: {name} in precondition: {asked[field]}, {name} in object meta: {is_now[field]}"
            raise conflict(resource, is_now["name"], why)
    if options.get("propagationPolicy") not in {None, "", "Background", "Foreground", "Orphan"}:
        raise bad_request(f"invalid propagationPolicy {options['propagationPolicy']!r}")


def _add_policy(metadata: Body, options: Body) -> None:
    policy = "Orphan" if options.get("orphanDependents") else options.get("propagationPolicy")
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy or "")
    if wanted and wanted not in (metadata.get("finalizers") or []):
        metadata["finalizers"] = [*(metadata.get("finalizers") or []), wanted]


def _grace(resource: Resource, old: Body, options: Body) -> int:
    """Only pods are deleted with grace, and only where a node has to stop something."""
    if resource.key != "pods":
        return 0
    spec, status = old["spec"], old.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ENDED:
        return 0
    asked = options.get("gracePeriodSeconds")
    grace = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(int(grace), 0)
