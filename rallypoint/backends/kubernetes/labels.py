"""Labels of a job's objects: written, selected and read again. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.backends.kubernetes.names import JobRef

__all__ = [
    "ATTEMPT",
    "DOMAIN",
    "DRIVERS",
    "DRIVER_PODS",
    "END",
    "FIRST",
    "INCARNATION",
    "JOB",
    "LIVES",
    "NODE",
    "PARENT",
    "PART",
    "PLACE",
    "TOGETHER",
    "UID",
    "Part",
    "PodLabels",
    "labels",
    "read_pod",
    "selector",
]

DOMAIN = "rallypoint.dev/"
JOB = f"{DOMAIN}job"
UID = f"{DOMAIN}uid"
PART = f"{DOMAIN}part"
ATTEMPT = f"{DOMAIN}attempt"
NODE = f"{DOMAIN}node"
INCARNATION = f"{DOMAIN}incarnation"
#: Of a pod with instances of simple roles: the group of roles, or the role, whose pod it is; NODE is its number among them.
PLACE = f"{DOMAIN}place"
#: Of the pods of one group of roles, which run on one machine: the same for all of them.
TOGETHER = f"{DOMAIN}together"
#: Annotation of a unit's pod: the first life of each of its instances, as `role-index=reset.incarnation`, separated by commas.
LIVES = f"{DOMAIN}lives"
#: Of the objects of an elastic role: the job that it is a role of.
PARENT = f"{DOMAIN}parent"
#: Of a pod that another controller makes: which node is the first of its set; its number in the set comes on top.
FIRST = f"{DOMAIN}first-node"

#: Annotations of the pods of a job with server roles in an AppWrapper: the containers of a pod that are drivers, separated by
#: commas; of a pod with servers, how many pods with drivers the job has; and the request to end the servers of the pod.
DRIVERS = f"{DOMAIN}drivers"
DRIVER_PODS = f"{DOMAIN}driver-pods"
END = f"{DOMAIN}end"

#: Where the controllers that make pods write a pod's number in its set.
_INDEXES = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
)


class Part(str, enum.Enum):
    """What an object is to its job."""

    JOB = "job"
    STATUS = "status"
    SECRET = "secret"
    FUNCTION = "function"  #: what the workers of a job call that is a function
    SERVICE = "service"
    NETWORK = "network"  #: who may connect to the job's pods
    COORDINATOR = "coordinator"
    NODE = "node"
    SUPERVISOR = "supervisor"
    UNIT = "unit"  #: a pod with instances of simple roles
    DIRECTORY = "directory"  #: the pod through which instances find each other
    UNITS = "units"  #: which life of each instance was started last
    DEVICES = "devices"  #: what the pods of a group claim
    WRAPPER = "wrapper"  #: the AppWrapper or PyTorchJob for which another controller makes the pods
    WRAPPED = "wrapped"  #: a pod that it makes


@dataclass(frozen=True, kw_only=True)
class PodLabels:
    """What the labels of a pod say: the coordinator has `node` -1 and its term as `incarnation`.

    `place` is of a pod with instances of simple roles.

    A pod that another controller makes does not know its attempt; it says 0.
    """

    job: str
    uid: str
    part: Part
    attempt: int
    node: int
    incarnation: int
    place: str = ""


def labels(
    job: JobRef, part: Part, *, attempt: int | None = None, node: int | None = None, incarnation: int | None = None
) -> dict[str, str]:
    """Return the labels of one object; `incarnation` is the term of a coordinator."""
    numbers = {ATTEMPT: attempt, NODE: node, INCARNATION: incarnation}
    return {
        JOB: job.name,
        UID: job.uid,
        PART: part.value,
        **({PARENT: job.parent} if job.parent else {}),
        **{label: str(number) for label, number in numbers.items() if number is not None},
    }


def selector(job: JobRef | None = None, part: Part | None = None) -> str:
    """Return the label selector of one job's objects, or of every job's where that is None; of one part, or of all."""
    wanted = [JOB] if job is None else [f"{JOB}={job.name}", f"{UID}={job.uid}"]
    return ",".join([*wanted, *([] if part is None else [f"{PART}={part.value}"])])


def read_pod(found: Mapping[str, str]) -> PodLabels | None:
    """Return what the labels of a coordinator's or a node's pod say; None for other pods and for what nobody of ours wrote."""
    try:
        part = Part(found[PART])
        if part is Part.WRAPPED:
            return _wrapped(found)
        if part not in (Part.COORDINATOR, Part.DIRECTORY, Part.NODE, Part.UNIT):
            return None
        return PodLabels(
            job=found[JOB],
            uid=found[UID],
            part=part,
            attempt=_number(found[ATTEMPT]),
            node=-1 if part in (Part.COORDINATOR, Part.DIRECTORY) else _number(found[NODE]),
            incarnation=_number(found[INCARNATION]),
            place=found[PLACE] if part is Part.UNIT else "",
        )
    except (KeyError, ValueError):
        return None


def _wrapped(found: Mapping[str, str]) -> PodLabels:
    index = next((found[label] for label in _INDEXES if label in found), "0")
    node = _number(found[FIRST]) + _number(index)
    return PodLabels(job=found[JOB], uid=found[UID], part=Part.NODE, attempt=0, node=node, incarnation=1)


def _number(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(text)
