"""What is kept of a pod, a ConfigMap and a host: the handful of fields that decide something. Pure.

A pod's JSON is some 8 KB and thousands of pods are watched, so it is read once, as it comes, and forgotten.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.kubernetes import labels
from rallypoint.backends.kubernetes.labels import Part, PodLabels
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.manifests import kueue
from rallypoint.backends.kubernetes.manifests.hosts import HOSTNAME
from rallypoint.backends.kubernetes.manifests.objects import JOB_KEY, MANIFEST_KEY, PLAN_KEY, RECORD_KEY, STATUS_KEY
from rallypoint.backends.kubernetes.watching.bounded import MESSAGE, Texts, entries, fields, identity, number, words

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A container that does not run (yet)."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A container that runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terminated:
    """A container that ended; `at` as the kubelet says it, in seconds since the epoch, None if it does not."""

    code: int
    reason: str
    message: str
    at: float | None = None


#: Digits of a number of pods, at most.
_DIGITS = 10

#: Containers of each sort, entries of a list, and labels of a machine of which something is kept, at most.
_CONTAINERS, _ENTRIES, _LABELS = 256, 1024, 1024

#: What is read of a ConfigMap, and the most characters of it: Kubernetes takes at most 1 MiB.
_READ: Mapping[str, tuple[str, ...]] = {
    Part.JOB.value: (JOB_KEY, PLAN_KEY, RECORD_KEY, MANIFEST_KEY),
    Part.STATUS.value: (STATUS_KEY,),
}
_DATA = 1 << 20

_WAITING = Waiting(reason="", message="")
_RUNNING = Running()


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One container: `init` runs before the others, `restarts` counts its ends so far; `last` is how its last run ended."""

    name: str
    state: Waiting | Running | Terminated
    restarts: int = 0
    init: bool = False
    last: Terminated | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigMapView:
    """A job's ConfigMap, or its status': of `data` what somebody reads, as it is, parsed only by who needs it."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
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


def pod_view(pod: Mapping[str, Any]) -> PodView | None:
    """Return what is kept of a pod; None for one that is not of a job."""
    meta, spec, status = fields(pod.get("metadata")), fields(pod.get("spec")), fields(pod.get("status"))
    found, name = labels.read_pod(_labels(meta)), identity(meta.get("name"))
    if found is None or not name:
        return None
    texts = Texts()
    conditions = {identity(c.get("type")): c for c in entries(status.get("conditions"), _ENTRIES)}
    target, target_message = _target(conditions, texts)
    scheduled = conditions.get("PodScheduled") or {}
    host = sys.intern(identity(spec.get("nodeName")))
    gated = bool(spec.get("schedulingGates")) or scheduled.get("reason") == "SchedulingGated"
    unscheduled = scheduled.get("status") == "False" and not gated and not host
    annotations = fields(meta.get("annotations"))
    driver_pods = texts.cut(annotations.get(labels.DRIVER_PODS))
    declared = tuple(entries(spec.get("containers"), _CONTAINERS))
    names = [identity(c.get("name")) for c in declared] or [""]
    return PodView(
        name=name,
        uid=identity(meta.get("uid")),
        version=identity(meta.get("resourceVersion")),
        labels=found,
        phase=sys.intern(identity(status.get("phase")) or "Pending"),
        host=host,
        ip=identity(status.get("podIP")),
        main=sys.intern(next((name for name in names if name in _MAIN), names[0])),
        containers=(
            *(_container(c, texts, init=True) for c in entries(status.get("initContainerStatuses"), _CONTAINERS)),
            *(_container(c, texts, init=False) for c in entries(status.get("containerStatuses"), _CONTAINERS)),
        ),
        deleting=bool(meta.get("deletionTimestamp")),
        gated=gated,
        unschedulable=_no_room(scheduled, texts) if unscheduled else "",
        reason=texts.cut(status.get("reason")),
        message=texts.cut(status.get("message"), MESSAGE),
        target=target,
        target_message=target_message,
        devices=_devices(declared),
        held=bool(meta.get("finalizers")),
        awaits_successor=_awaits_successor(meta),
        keeps_off=_keeps_off(spec) if unscheduled else (),
        lives=texts.cut(annotations.get(labels.LIVES), MESSAGE),
        drivers=_drivers(texts.cut(annotations.get(labels.DRIVERS), MESSAGE)),
        driver_pods=int(driver_pods) if driver_pods.isascii() and driver_pods.isdigit() and len(driver_pods) < _DIGITS else 0,
        end_requested=bool(annotations.get(labels.END)),
    )


def _labels(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object that can be some."""
    found = fields(meta.get("labels"))
    return {key: text for key, text in itertools.islice(found.items(), _LABELS) if identity(key) and _is_value(text)}


def _is_value(text: object) -> bool:
    return text == "" or identity(text) != ""


def _drivers(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",", _CONTAINERS)[:_CONTAINERS]))


def _no_room(scheduled: Mapping[str, Any], texts: Texts) -> str:
    said = texts.cut(scheduled.get("message"), MESSAGE) or texts.cut(scheduled.get("reason"))
    return said or "no node has enough free resources"


def _keeps_off(spec: Mapping[str, Any]) -> tuple[str, ...]:
    affinity = fields(fields(spec.get("affinity")).get("nodeAffinity"))
    required = fields(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    found = (
        sys.intern(name)
        for term in entries(required.get("nodeSelectorTerms"), _ENTRIES)
        for one in entries(term.get("matchExpressions"), _ENTRIES)
        if one.get("key") == HOSTNAME and one.get("operator") == "NotIn"
        for name in words(one.get("values"), _ENTRIES)
    )
    return tuple(sorted(set(itertools.islice(found, _ENTRIES))))


def _awaits_successor(meta: Mapping[str, Any]) -> bool:
    grouped = kueue.FINALIZER in words(meta.get("finalizers"), _ENTRIES) and kueue.GROUP in fields(meta.get("labels"))
    return grouped and fields(meta.get("annotations")).get(kueue.RETRIABLE) != "false"


def _target(conditions: Mapping[str, Mapping[str, Any]], texts: Texts) -> tuple[str, str]:
    """Return by whom or why a pod is ended, and their sentence."""
    for kind in (_TERMINATED, _DISRUPTED):
        found = conditions.get(kind) or {}
        if found.get("status") == "True":
            reason, message = texts.cut(found.get("reason")), texts.cut(found.get("message"), MESSAGE)
            return (kind, f"{reason}: {message}") if kind == _TERMINATED else (reason, message)
    return "", ""


def _container(status: Mapping[str, Any], texts: Texts, *, init: bool) -> Container:
    state = fields(status.get("state"))
    seen: Waiting | Running | Terminated = _WAITING
    if (ended := state.get("terminated")) is not None:
        seen = _ended(fields(ended), texts)
    elif state.get("running") is not None:
        seen = _RUNNING
    elif waiting := fields(state.get("waiting")):
        seen = Waiting(reason=texts.cut(waiting.get("reason")), message=texts.cut(waiting.get("message"), MESSAGE))
    before = fields(status.get("lastState")).get("terminated")
    return Container(
        name=sys.intern(identity(status.get("name"))),
        state=seen,
        restarts=number(status.get("restartCount")),
        init=init,
        last=None if before is None else _ended(fields(before), texts),
    )


def _ended(found: Mapping[str, Any], texts: Texts) -> Terminated:
    reason, message = texts.cut(found.get("reason")), texts.cut(found.get("message"), MESSAGE)
    at = parse_time(identity(found.get("finishedAt")))
    return Terminated(code=number(found.get("exitCode")), reason=reason, message=message, at=at or None)


def _devices(containers: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    asked = (
        sys.intern(resource)
        for container in containers
        for resource, amount in fields(fields(container.get("resources")).get("limits")).items()
        if identity(resource) and not resource.startswith(_ORDINARY) and amount not in ("0", 0)
    )
    return tuple(sorted(set(itertools.islice(asked, _ENTRIES))))


def configmap_view(configmap: Mapping[str, Any]) -> ConfigMapView | None:
    """Return what is kept of a ConfigMap; None for one that is not of a job."""
    meta = fields(configmap.get("metadata"))
    its, name, annotations = _labels(meta), identity(meta.get("name")), fields(meta.get("annotations"))
    if not name or not all(label in its for label in (labels.JOB, labels.UID, labels.PART)):
        return None
    texts = Texts()
    return ConfigMapView(
        name=name,
        uid=identity(meta.get("uid")),
        version=identity(meta.get("resourceVersion")),
        job=its[labels.JOB],
        job_uid=its[labels.UID],
        part=sys.intern(its[labels.PART]),
        data=_data(fields(configmap.get("data")), _READ.get(its[labels.PART], ())),
        holder=texts.cut(annotations.get(HOLDER)),
        ended=texts.cut(annotations.get(ENDED)),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def _data(found: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Return what is read of a ConfigMap: whole texts, since half of one says nothing, and as much as one can have."""
    kept, left = {}, _DATA
    for key in keys:
        text = found.get(key)
        if isinstance(text, str) and len(text) <= left:
            kept[key], left = text, left - len(text)
    return kept


#: Label by which Autopilot says how the accelerators of a machine are, and the word for those that must not be used.
_HEALTH, _EVICT = "autopilot.ibm.com/gpuhealth", "EVICT"


def host_view(node: Mapping[str, Any]) -> HostView | None:
    """Return what is kept of a machine; None for what can be none."""
    meta, spec = fields(node.get("metadata")), fields(node.get("spec"))
    name, its = identity(meta.get("name")), _labels(meta)
    if not name:
        return None
    conditions = entries(fields(node.get("status")).get("conditions"), _ENTRIES)
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    keys = (
        identity(t.get("key")) for t in entries(spec.get("taints"), _ENTRIES) if t.get("effect") in ("NoSchedule", "NoExecute")
    )
    return HostView(
        name=name,
        uid=identity(meta.get("uid")),
        version=identity(meta.get("resourceVersion")),
        ready={"True": True, "False": False}.get(ready) if isinstance(ready, str) else None,
        bad=f"{_HEALTH}={_EVICT}" if its.get(_HEALTH) == _EVICT else "",
        cordoned=bool(spec.get("unschedulable")),
        labels=its,
        taints=tuple(keys),
    )
