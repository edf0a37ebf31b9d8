"""What JobSet's controller, and the controller of Kubernetes Jobs below it, do about a JobSet's pods. Pure.

Of the features of both: replicated jobs with indexed completions, which are as many as pods run at once. A pod that failed
stays, and one that was deleted before its end has failed as well; either is replaced after a back-off while the Job's limit
lasts. Restarts of containers count against that limit (`OnFailure`). An index that has succeeded once stays so, also when its
pod is gone. A JobSet without restarts fails with its first Job, and what still runs of it is deleted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.controllers.times import write_time

__all__ = ["INDEX", "NAME", "Memory", "Turn", "condition", "turn"]

Object = dict[str, Any]

NAME, REPLICATED = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"

#: Seconds before the pod of a Job is replaced that failed, for the first time and at most.
_BACK_OFF, _LONGEST = 10.0, 600.0


@dataclass
class Memory:
    """What the Jobs of one JobSet know of pods that may be gone: indexes that succeeded, and pods that failed, by Job."""

    succeeded: dict[str, set[int]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)
    running: dict[str, dict[str, int]] = field(default_factory=dict)  #: by uid, the index of each pod that was seen alive
    last_failure: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Pods to create and to delete, the condition to set ("" for none), and in how many seconds to look again."""

    create: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    condition: str = ""
    after: float | None = None


def turn(jobset: Object, pods: Iterable[Object], memory: Memory, now: float, *, speed: float = 1.0) -> Turn:
    """Return what is to be done; `memory` is brought up to date. Back-offs last `speed` times shorter than they are written."""
    every = list(pods)
    for job in jobset["spec"]["replicatedJobs"]:
        _remember(job["name"], _of(every, job["name"]), memory, now)
    if any(c["status"] == "True" for c in jobset.get("status", {}).get("conditions", [])):
        finished = [
            pod for pod in every if _phase(pod) in {"Pending", "Running"} and "deletionTimestamp" not in pod["metadata"]
        ]
        return Turn(delete=tuple(finished))
    jobs = jobset["spec"]["replicatedJobs"]
    if any(_worn_out(job, _of(every, job["name"]), memory) for job in jobs):
        return Turn(condition="Failed", after=0.0)
    if all(len(memory.succeeded.get(job["name"], ())) >= job["template"]["spec"]["completions"] for job in jobs):
        return Turn(condition="Completed")
    create: list[Object] = []
    waits: list[float] = []
    for job in jobs:
        missing = list(_missing(job, _of(every, job["name"]), memory))
        wait = _back_off(job["name"], memory, now, speed) if missing else 0.0
        if wait > 0:
            waits.append(wait)
        else:
            create += [_pod(jobset, job, index, len(memory.failed.get(job["name"], ()))) for index in missing]
    return Turn(create=tuple(create), after=min(waits, default=None))


def _of(pods: Iterable[Object], job: str) -> list[Object]:
    return [pod for pod in pods if pod["metadata"]["labels"].get(REPLICATED) == job]


def _phase(pod: Object) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase


def _remember(job: str, pods: list[Object], memory: Memory, now: float) -> None:
    succeeded, failed = memory.succeeded.setdefault(job, set()), memory.failed.setdefault(job, set())
    alive = memory.running.setdefault(job, {})
    before = len(failed)
    for pod in pods:
        uid, index = pod["metadata"]["uid"], int(pod["metadata"]["labels"][INDEX])
        if _phase(pod) == "Succeeded":
            succeeded.add(index)
            alive.pop(uid, None)
        elif _phase(pod) == "Failed" or "deletionTimestamp" in pod["metadata"]:
            failed.add(uid)
            alive.pop(uid, None)
        else:
            alive[uid] = index
    here = {pod["metadata"]["uid"] for pod in pods}
    for uid in [uid for uid in alive if uid not in here]:  # deleted at once
        failed.add(uid)
        del alive[uid]
    if len(failed) > before:
        memory.last_failure[job] = now


def _worn_out(job: Object, pods: list[Object], memory: Memory) -> bool:
    """Return whether a Job has failed: more failures than its limit, or with `OnFailure` as many restarts as that."""
    spec = job["template"]["spec"]
    limit = spec.get("backoffLimit", 6)
    if len(memory.failed[job["name"]]) > limit:
        return True
    if spec["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(one.get("restartCount", 0) for pod in pods for one in pod.get("status", {}).get("containerStatuses", []))
    return bool(restarts > 0 if limit == 0 else restarts >= limit)


def _missing(job: Object, pods: list[Object], memory: Memory) -> Iterator[int]:
    taken = {
        int(pod["metadata"]["labels"][INDEX])
        for pod in pods
        if _phase(pod) != "Failed" and "deletionTimestamp" not in pod["metadata"]
    }
    done = memory.succeeded[job["name"]]
    yield from (index for index in range(job["template"]["spec"]["completions"]) if index not in taken | done)


def _back_off(job: str, memory: Memory, now: float, speed: float) -> float:
    failures = len(memory.failed[job])
    if not failures:
        return 0.0
    pause = min(_BACK_OFF * 2 ** (failures - 1), _LONGEST) / speed
    return memory.last_failure[job] + pause - now


def _pod(jobset: Object, job: Object, index: int, failures: int) -> Object:
    template = copy.deepcopy(job["template"]["spec"]["template"])
    name = f"{jobset['metadata']['name']}-{job['name']}-0-{index}"
    given, spec = template.get("metadata", {}), template["spec"]
    owner = {field: jobset[field] for field in ("apiVersion", "kind")}
    owner |= {"name": jobset["metadata"]["name"], "uid": jobset["metadata"]["uid"], "controller": True}
    labels = {NAME: jobset["metadata"]["name"], REPLICATED: job["name"], INDEX: str(index)}
    spec |= {"hostname": name, "subdomain": jobset["metadata"]["name"]}
    number = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["env"] = [*container.get("env", ()), number]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{failures:05d}",
            "namespace": jobset["metadata"]["namespace"],
            "labels": {**given.get("labels", {}), **labels},
            "annotations": {**given.get("annotations", {}), INDEX: str(index)},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def condition(kind: str, now: float) -> Object:
    """Return a condition of a JobSet that is true."""
    return {"type": kind, "status": "True", "reason": f"JobSet{kind}", "message": "", "lastTransitionTime": write_time(now)}
