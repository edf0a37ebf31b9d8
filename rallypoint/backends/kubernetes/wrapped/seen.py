"""What an AppWrapper, a PyTorchJob and their pods say, in the supervisor's words. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.labels import ATTEMPT, DOMAIN
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.watching.judging import Around, node_seen
from rallypoint.backends.kubernetes.watching.observe import CLEARING
from rallypoint.backends.kubernetes.watching.views import HostView, PodView, Terminated
from rallypoint.supervision.observation import Components, NodeSeen, NodeState, Told
from rallypoint.supervision.record import Condition, ConditionType, JobRecord, Phase
from rallypoint.wire.bounds import read_count

__all__ = ["SUSPENDED", "components", "controller", "nodes", "told", "unneeded", "waiting"]

#: Annotation of a wrapper that was suspended by a person's wish through us.
SUSPENDED = f"{DOMAIN}suspended"

#: Resets that an AppWrapper can have: as many as a record has charges.
_RESETS = JobRecord.limits["charges"][1]

_TYPES = {kind.value: kind for kind in ConditionType}


def told(wrapper: Mapping[str, Any]) -> Told:
    """Return the state of an AppWrapper; raises `BackendError` for an unknown phase and an invalid number."""
    metadata, spec, status = wrapper["metadata"], wrapper.get("spec") or {}, wrapper.get("status") or {}
    annotations = metadata.get("annotations") or {}
    # Each type has one condition; more of them would make a record that no ConfigMap holds.
    named = {c["type"]: c for c in reversed(status.get("conditions") or ()) if c.get("type") in _TYPES}
    conditions = list(reversed(named.values()))
    return Told(
        phase=_phase(metadata["name"], status.get("phase") or ""),
        conditions=tuple(map(_condition, conditions)),
        messages=tuple((_TYPES[c["type"]], c["message"]) for c in conditions if c.get("message")),
        retries=_count(metadata["name"], "status.resettingCount", status.get("resettingCount") or 0),
        first_attempt=_count(metadata["name"], f"annotation {ATTEMPT}", annotations.get(ATTEMPT) or 1),
        suspended=bool(spec.get("suspend")),
        by_us=annotations.get(SUSPENDED) == "true",
        deleting="deletionTimestamp" in metadata,
    )


def _count(name: str, field: str, value: object) -> int:
    number = read_count(str(value), _RESETS)
    if number is None:
        raise BackendError(
            f"AppWrapper {name}: {field}: {str(value)[:40]!r} is not allowed; expected a number from 0 to {_RESETS}"
        )
    return number


def _phase(name: str, text: str) -> Phase:
    try:
        return Phase(text)
    except ValueError:
        known = ", ".join(phase.value for phase in Phase if phase.value)
        raise BackendError(f"AppWrapper {name}: status.phase: {text!r} is unknown; expected one of {known}") from None


def _condition(condition: Mapping[str, Any]) -> Condition:
    return Condition(
        type=_TYPES[condition["type"]],
        value=condition.get("status") == "True",
        reason=str(condition.get("reason") or ""),
        at=parse_time(str(condition.get("lastTransitionTime") or "")),
        clock=0.0,
    )


def components(found: Mapping[str, Any] | None) -> Components:
    """Return what a PyTorchJob says of itself; None is one that does not exist."""
    if found is None:
        return Components(expected=1, deployed=0)
    conditions = (found.get("status") or {}).get("conditions") or ()
    failed = any(c.get("type") == "Failed" and c.get("status") == "True" for c in conditions)
    deleting = "deletionTimestamp" in found["metadata"]
    return Components(expected=1, deployed=int(not deleting), failed=int(failed), deleting=int(deleting))


def controller(kind: str, found: Mapping[str, Any]) -> str:
    """Return the condition that a controller set last, as `PyTorchJob Created (PyTorchJobCreated): it is created`.

    A condition that does not hold says so. An object without any says that its controller has not looked at it.
    """
    conditions = (found.get("status") or {}).get("conditions") or ()
    if not conditions:
        return f"{kind}: its controller has reported no condition"
    last = max(enumerate(conditions), key=lambda one: (str(one[1].get("lastTransitionTime") or ""), one[0]))[1]
    holds = "" if last.get("status") == "True" else f" is {last.get('status')}"
    reason = f" ({last['reason']})" if last.get("reason") else ""
    message = f": {str(last['message']).strip()}" if last.get("message") else ""
    return f"{kind} {last.get('type')}{holds}{reason}{message}"


def waiting(record: JobRecord, count: int) -> tuple[NodeSeen, ...]:
    """Return the pods that a queue has not let begin yet: they hold nothing, and no clock runs for them."""
    return tuple(
        NodeSeen(attempt=record.attempt, node=node, incarnation=1, state=NodeState.STARTING, present=False, gated=True)
        for node in range(count)
    )


def nodes(
    record: JobRecord, pods: Iterable[PodView], hosts: Mapping[str, HostView], tails: Mapping[str, tuple[str, ...]]
) -> tuple[NodeSeen, ...]:
    """Return what is seen of the pods that a controller makes, all as of the current attempt.

    Whoever removes a whole attempt makes its pods end badly; that is no fault of theirs, so a pod that was asked to go counts
    as ending, unless somebody says why its host or the cluster has ended it.
    """
    return tuple(sorted(_nodes(record, pods, hosts, tails), key=lambda seen: (seen.node, seen.present)))


def unneeded(pods: Iterable[PodView]) -> frozenset[str]:
    """Return the uids of the pods whose servers should end: all drivers of the job have succeeded."""
    every = tuple(pods)
    servers = [pod for pod in every if pod.driver_pods and not (pod.end_requested or pod.deleting or pod.over)]
    if not servers:
        return frozenset()
    done = {pod.labels.node for pod in every if pod.drivers and _drivers_succeeded(pod)}
    return frozenset(pod.uid for pod in servers if len(done) >= pod.driver_pods)


def _drivers_succeeded(pod: PodView) -> bool:
    ended = {one.name: one.state.code for one in pod.containers if not one.init and isinstance(one.state, Terminated)}
    return pod.phase == "Succeeded" or all(ended.get(name) == 0 for name in pod.drivers)


def _nodes(
    record: JobRecord, pods: Iterable[PodView], hosts: Mapping[str, HostView], tails: Mapping[str, tuple[str, ...]]
) -> Iterator[NodeSeen]:
    every = tuple(pods)
    due = unneeded(every)
    for pod in every:
        host = hosts.get(pod.host)
        around = Around(log_tail=tails.get(pod.uid, ()), kept=record.phase not in CLEARING)
        if host is not None:
            around = dataclasses.replace(around, host=host)
        asked = dataclasses.replace(pod, phase="Running", containers=()) if pod.deleting and not pod.target else pod
        seen = node_seen(asked, around)
        yield dataclasses.replace(seen, attempt=record.attempt, unneeded=pod.uid in due)
