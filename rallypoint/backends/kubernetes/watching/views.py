"""What is kept of a pod, a ConfigMap and a host: the handful of fields that decide something. Pure.

A pod's JSON is some 8 KB and thousands of pods are watched, so it is read once, as it comes, and forgotten.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.kubernetes import labels
from rallypoint.backends.kubernetes.labels import PodLabels
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.manifests import kueue
from rallypoint.backends.kubernetes.manifests.hosts import HOSTNAME

__all__ = [
    "ENDED",
    "HOLDER",
    "ConfigMapView",
    "Container",
    "HostView",
    "PodView",
    "Running",
    "Terminated",
    "Waiting",
    "configmap_view",
    "host_view",
    "pod_view",
]

#: Annotation of a job's ConfigMap: the id of the process that supervises it, as long as it does.
HOLDER = f"{labels.DOMAIN}holder"

#: Annotation of a job's ConfigMap: which attempt ended when, on the API server's clock (see sweeping.py).
ENDED = f"{labels.DOMAIN}ended"

#: Condition types by which somebody says that a pod will be ended, and why. The second is Kueue's, whatever its reason.
_DISRUPTED, _TERMINATED = "DisruptionTarget", "TerminationTarget"

#: Names of the containers that are a node and a coordinator, whatever a user's template puts beside them.
_MAIN = ("trainer", "coordinator")

#: Resources that a machine has anyway; whatever else a pod asks for is a device.
_ORDINARY = ("cpu", "memory", "ephemeral-storage", "storage", "pods", "hugepages-")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A container that does not run (yet)."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Running:
    """A container that runs."""


@dataclass(frozen=True, kw_only=True)
class Terminated:
    """A container that ended; `at` as the kubelet says it, in seconds since the epoch, None if it does not."""

    code: int
    reason: str
    message: str
    at: float | None = None


#: Digits of a number of pods, at most.
_DIGITS = 10

#: Bytes of a mapping for each of its keys.
_SLOT = 100

_WAITING = Waiting(reason="", message="")
_RUNNING = Running()


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container: `init` runs before the others, `restarts` counts its ends so far; `last` is how its last run ended."""

    name: str
    state: Waiting | Running | Terminated
    restarts: int = 0
    init: bool = False
    last: Terminated | None = None


@dataclass(frozen=True, kw_only=True)
class PodView:
    """One pod of a job.

    Attributes:
        uid: of the object; `version` its resourceVersion.
        labels: which node of which job it is.
        phase: Kubernetes' word.
        host: name of the machine; `ip` the pod's address; both "" before it is scheduled and started.
        main: name of the container that is the node; `containers` are all, in the order of its spec, as far as they were seen.
        deleting: it was asked to go.
        gated: it waits for quota; `unschedulable`: what the scheduler says, "" where it found room.
        reason, message: why the pod as a whole ended, where its host or the control plane ended it.
        target: why somebody ends it, or has (`PreemptionByScheduler`; `TerminationTarget`: Kueue); `target_message` in words.
        devices: names of the resources it asks for that are no ordinary ones.
        held: somebody keeps the object by a finalizer, whatever becomes of the pod.
        awaits_successor: Kueue keeps it, and its share of the quota, until another pod of its group takes its place.
        keeps_off: the machines that its node affinity excludes by name, where it has none yet.
        lives: of a pod with instances of simple roles, the first life of each (labels.LIVES).
        drivers: names of its containers that are drivers, where the job has servers in an AppWrapper (labels.DRIVERS).
        driver_pods: of a pod with such servers, the number of pods with drivers; 0 for every other pod (labels.DRIVER_PODS).
        end_requested: its servers were asked to end (labels.END).
    """

    name: str
    uid: str
    version: str
    labels: PodLabels
    phase: str
    host: str = ""
    ip: str = ""
    main: str = ""
    containers: tuple[Container, ...] = ()
    deleting: bool = False
    gated: bool = False
    unschedulable: str = ""
    reason: str = ""
    message: str = ""
    target: str = ""
    target_message: str = ""
    devices: tuple[str, ...] = ()
    held: bool = False
    awaits_successor: bool = False
    keeps_off: tuple[str, ...] = ()
    lives: str = ""
    drivers: tuple[str, ...] = ()
    driver_pods: int = 0
    end_requested: bool = False

    @property
    def size(self) -> int:
        """Bytes that the view keeps, roughly."""
        texts = (
            self.unschedulable,
            self.reason,
            self.message,
            self.target_message,
            self.lives,
            *self.drivers,
            *self.devices,
            *self.keeps_off,
        )
        states = (state for c in self.containers for state in (c.state, c.last))
        said = sum(sys.getsizeof(state.message) for state in states if isinstance(state, (Waiting, Terminated)))
        return 2048 + 512 * len(self.containers) + said + sum(map(sys.getsizeof, texts))

    @property
    def trainer(self) -> Container | None:
        """The container that is the node."""
        return next((c for c in self.containers if c.name == self.main and not c.init), None)

    @property
    def over(self) -> bool:
        """Nothing of it will run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def only_kept(self) -> bool:
        """Nothing of it runs or will, it was asked to go, and the object is there for somebody's finalizer alone."""
        return self.held and self.deleting and (self.over or not self.host)


@dataclass(frozen=True, kw_only=True)
class ConfigMapView:
    """A job's ConfigMap, or its status': `data` as it is, parsed only by who needs it."""

    name: str
    uid: str
    version: str
    job: str
    job_uid: str
    part: str
    data: Mapping[str, str]
    holder: str = ""
    ended: str = ""
    deleting: bool = False

    @property
    def size(self) -> int:
        """Bytes that the view keeps, roughly."""
        # Many small texts, and texts with one emoji, need several times their characters.
        return 1024 + sum(sys.getsizeof(key) + sys.getsizeof(text) + _SLOT for key, text in self.data.items())


@dataclass(frozen=True, kw_only=True)
class HostView:
    """A machine of the cluster.

    Attributes:
        ready: None where its own heartbeat is missing.
        bad: the devices that were flagged, by resource.
        cordoned: nothing new is scheduled to it.
        labels: by which pods choose it.
        taints: keys of its taints that keep pods off (`NoSchedule`, `NoExecute`).
    """

    name: str
    uid: str
    version: str
    ready: bool | None
    bad: str = ""
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that the view keeps, roughly."""
        return 1024 + 128 * (len(self.labels) + len(self.taints))


def pod_view(pod: Mapping[str, Any]) -> PodView | None:
    """Return what is kept of a pod; None for one that is not of a job."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    found = labels.read_pod(meta.get("labels") or {})
    if found is None:
        return None
    conditions = {str(c.get("type")): c for c in status.get("conditions") or () if isinstance(c, dict)}
    target, target_message = _target(conditions)
    scheduled = conditions.get("PodScheduled") or {}
    gated = bool(spec.get("schedulingGates")) or scheduled.get("reason") == "SchedulingGated"
    unscheduled = scheduled.get("status") == "False" and not gated and not spec.get("nodeName")
    annotations = meta.get("annotations") or {}
    driver_pods = str(annotations.get(labels.DRIVER_PODS) or "")
    declared: Sequence[Mapping[str, Any]] = spec.get("containers") or ({},)
    names = [c.get("name") or "" for c in declared]
    return PodView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        version=meta.get("resourceVersion", ""),
        labels=found,
        phase=sys.intern(status.get("phase") or "Pending"),
        host=sys.intern(spec.get("nodeName") or ""),
        ip=status.get("podIP") or "",
        main=sys.intern(next((name for name in names if name in _MAIN), names[0])),
        containers=(
            *(_container(c, init=True) for c in status.get("initContainerStatuses") or ()),
            *(_container(c, init=False) for c in status.get("containerStatuses") or ()),
        ),
        deleting=bool(meta.get("deletionTimestamp")),
        gated=gated,
        unschedulable=_no_room(scheduled) if unscheduled else "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        target=target,
        target_message=target_message,
        devices=_devices(declared),
        held=bool(meta.get("finalizers")),
        awaits_successor=_awaits_successor(meta),
        keeps_off=_keeps_off(spec) if unscheduled else (),
        lives=annotations.get(labels.LIVES) or "",
        drivers=tuple(filter(None, str(annotations.get(labels.DRIVERS) or "").split(","))),
        driver_pods=int(driver_pods) if driver_pods.isascii() and driver_pods.isdigit() and len(driver_pods) < _DIGITS else 0,
        end_requested=bool(annotations.get(labels.END)),
    )


def _no_room(scheduled: Mapping[str, Any]) -> str:
    return scheduled.get("message") or scheduled.get("reason") or "no node has enough free resources"


def _keeps_off(spec: Mapping[str, Any]) -> tuple[str, ...]:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    found = {
        sys.intern(str(name))
        for term in (affinity or {}).get("nodeSelectorTerms") or ()
        for one in term.get("matchExpressions") or ()
        if one.get("key") == HOSTNAME and one.get("operator") == "NotIn"
        for name in one.get("values") or ()
    }
    return tuple(sorted(found))


def _awaits_successor(meta: Mapping[str, Any]) -> bool:
    grouped = kueue.FINALIZER in (meta.get("finalizers") or ()) and kueue.GROUP in (meta.get("labels") or {})
    return grouped and (meta.get("annotations") or {}).get(kueue.RETRIABLE) != "false"


def _target(conditions: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return by whom or why a pod is ended, and their sentence."""
    for kind in (_TERMINATED, _DISRUPTED):
        found = conditions.get(kind) or {}
        if found.get("status") == "True":
            reason, message = found.get("reason") or "", found.get("message") or ""
            return (kind, f"{reason}: {message}") if kind == _TERMINATED else (reason, message)
    return "", ""


def _container(status: Mapping[str, Any], *, init: bool) -> Container:
    state = status.get("state") or {}
    seen: Waiting | Running | Terminated = _WAITING
    if (ended := state.get("terminated")) is not None:
        seen = _ended(ended)
    elif state.get("running") is not None:
        seen = _RUNNING
    elif (waiting := state.get("waiting")) is not None and waiting:
        seen = Waiting(reason=waiting.get("reason") or "", message=waiting.get("message") or "")
    restarts = int(status.get("restartCount") or 0)
    before = (status.get("lastState") or {}).get("terminated")
    last = None if before is None else _ended(before)
    return Container(name=sys.intern(status.get("name") or ""), state=seen, restarts=restarts, init=init, last=last)


def _ended(found: Mapping[str, Any]) -> Terminated:
    reason, message = found.get("reason") or "", found.get("message") or ""
    at = parse_time(str(found.get("finishedAt") or ""))
    return Terminated(code=int(found.get("exitCode") or 0), reason=reason, message=message, at=at or None)


def _devices(containers: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    asked = {
        sys.intern(resource)
        for container in containers
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items()
        if not resource.startswith(_ORDINARY) and str(amount) != "0"
    }
    return tuple(sorted(asked))


def configmap_view(configmap: Mapping[str, Any]) -> ConfigMapView | None:
    """Return what is kept of a ConfigMap; None for one that is not of a job."""
    meta = configmap["metadata"]
    its = meta.get("labels") or {}
    if not all(label in its for label in (labels.JOB, labels.UID, labels.PART)):
        return None
    return ConfigMapView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        version=meta.get("resourceVersion", ""),
        job=its[labels.JOB],
        job_uid=its[labels.UID],
        part=sys.intern(its[labels.PART]),
        data=configmap.get("data") or {},
        holder=(meta.get("annotations") or {}).get(HOLDER, ""),
        ended=(meta.get("annotations") or {}).get(ENDED, ""),
        deleting=bool(meta.get("deletionTimestamp")),
    )


#: Label by which Autopilot says how the accelerators of a machine are, and the word for those that must not be used.
_HEALTH, _EVICT = "autopilot.ibm.com/gpuhealth", "EVICT"


def host_view(node: Mapping[str, Any]) -> HostView:
    """Return what is kept of a machine."""
    meta, spec = node["metadata"], node.get("spec") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    health = (meta.get("labels") or {}).get(_HEALTH, "")
    return HostView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        version=meta.get("resourceVersion", ""),
        ready={"True": True, "False": False}.get(ready or ""),
        bad=f"{_HEALTH}={health}" if health == _EVICT else "",
        cordoned=bool(spec.get("unschedulable")),
        labels=dict(meta.get("labels") or {}),
        taints=tuple(str(t.get("key")) for t in spec.get("taints") or () if t.get("effect") in ("NoSchedule", "NoExecute")),
    )
