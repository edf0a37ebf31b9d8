"""Labels of a job's objects: written, selected and read again. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.backends.kubernetes.names import JobRef

__all__ = [
    "ATTEMPT",
    "DOMAIN",
    "FIRST",
    "INCARNATION",
    "JOB",
    "NODE",
    "PART",
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
#: Of a pod that another controller makes: which node is the first of its set; its number in the set comes on top.
FIRST = f"{DOMAIN}first-node"

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
    WRAPPER = "wrapper"  #: the AppWrapper or PyTorchJob for which another controller makes the pods
    WRAPPED = "wrapped"  #: a pod that it makes


@dataclass(frozen=True, kw_only=True)
class PodLabels:
    """What the labels of a pod say: the coordinator has `node` -1 and its term as `incarnation`.

    A pod that another controller makes does not know its attempt; it says 0.
    """

    job: str
    uid: str
    part: Part
    attempt: int
    node: int
    incarnation: int


def labels(
    job: JobRef, part: Part, *, attempt: int | None = None, node: int | None = None, incarnation: int | None = None
) -> dict[str, str]:
    """Return the labels of one object; `incarnation` is the term of a coordinator."""
    numbers = {ATTEMPT: attempt, NODE: node, INCARNATION: incarnation}
    return {
        JOB: job.name,
        UID: job.uid,
        PART: part.value,
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
        if part not in (Part.COORDINATOR, Part.NODE):
            return None
        return PodLabels(
            job=found[JOB],
            uid=found[UID],
            part=part,
            attempt=_number(found[ATTEMPT]),
            node=_number(found[NODE]) if part is Part.NODE else -1,
            incarnation=_number(found[INCARNATION]),
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
