"""What a RayJob, a RayCluster and their pods say, as the one node that their supervisor sees: the driver. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import FaultKind

__all__ = ["Driver", "condition", "node", "rayjob_driver"]

#: Ray's words for how a driver ended, and KubeRay's for a RayJob that cannot have one.
_SUCCEEDED, _BADLY = "SUCCEEDED", ("FAILED", "STOPPED")
_FAILED, _INVALID = "Failed", "ValidationFailed"

#: Ray tells the exit code of a driver in a sentence, and its last lines after it.
_CODE = re.compile(r"exit code (\d{1,3})\b", re.ASCII)

#: Lines of the driver's output that are kept.
_TAIL = 50


@dataclass(frozen=True, kw_only=True)
class Driver:
    """How the driver of a RayJob is."""

    state: NodeState
    exit_code: int | None = None
    reason: str = ""
    kind: FaultKind | None = None
    log_tail: tuple[str, ...] = ()


def rayjob_driver(found: Mapping[str, Any]) -> Driver:
    """Return how the driver of a RayJob is, by the status that KubeRay's operator writes."""
    status = found.get("status") or {}
    job, deployment = status.get("jobStatus") or "", status.get("jobDeploymentStatus") or ""
    if job == _SUCCEEDED:
        return Driver(state=NodeState.SUCCEEDED, exit_code=0)
    if job in _BADLY or deployment in (_FAILED, _INVALID):
        return _ended(status, ran=job in _BADLY, valid=deployment != _INVALID)
    return Driver(state=NodeState.RUNNING if job == "RUNNING" else NodeState.STARTING)


def _ended(status: Mapping[str, Any], *, ran: bool, valid: bool) -> Driver:
    message = str(status.get("message") or "")
    head, _, output = message.partition("\n")
    code = _CODE.search(head)
    told = str(status.get("reason") or "")
    lines = tuple(line for line in output.splitlines() if line.strip())[-_TAIL:]
    reason = (lines[-1] if lines else head).strip() or told or "its driver ended"
    return Driver(
        state=NodeState.FAILED if ran or not valid else NodeState.LOST,
        exit_code=int(code[1]) if code else None,
        reason=reason if reason == told or not told else f"{told}: {reason}",
        kind=None if valid else FaultKind.START_FAILED,
        log_tail=lines,
    )


def condition(kind: str, found: Mapping[str, Any]) -> str:
    """Return how KubeRay's operator says that the object is, for people."""
    status = found.get("status") or {}
    state = status.get("jobDeploymentStatus") or status.get("state") or ""
    job = status.get("jobStatus") or ""
    reason = str(status.get("reason") or "")
    if not state:
        return f"{kind}: its controller has reported no status"
    return f"{kind} {state}{f' (job {job})' if job else ''}{f': {reason}' if reason else ''}"


def node(record: JobRecord, driver: Driver | None, pods: Iterable[NodeSeen], *, there: bool) -> NodeSeen | None:
    """Return the driver as the job's only node; None while nothing of the cluster is there.

    Args:
        record: of the job.
        driver: that of a RayJob; None is the container in the head pod of a RayCluster.
        pods: of the Ray cluster; the head is number 0.
        there: whether the RayJob or RayCluster exists and was not asked to go.
    """
    every = tuple(pods)
    present = any(pod.present for pod in every)
    head = next((pod for pod in every if pod.node == 0 and pod.present), None) or next((p for p in every if p.node == 0), None)
    if not there:
        if not present:
            return None
        return dataclasses.replace(_blank(record), state=NodeState.ENDING, present=True, deleting=True)
    if driver is None:
        if head is None or head.state is NodeState.LOST:  # KubeRay makes another
            return _blank(record)
        return dataclasses.replace(head, attempt=record.attempt, present=present)
    return dataclasses.replace(
        _blank(record),
        state=driver.state,
        present=present,
        host="" if head is None else head.host,
        exit_code=driver.exit_code,
        reason=driver.reason,
        kind=driver.kind,
        log_tail=driver.log_tail,
        unschedulable=driver.state is NodeState.STARTING and head is not None and head.unschedulable,
    )


def _blank(record: JobRecord) -> NodeSeen:
    return NodeSeen(attempt=record.attempt, node=0, incarnation=1, state=NodeState.STARTING, present=False)
