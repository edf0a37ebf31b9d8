"""What the training operator does about a PyTorchJob: which pods should be there, and what its status says. Pure.

As version 1 of the operator: a replica that is missing is created, one that has failed is kept (or, with `ExitCode` and a code
of 128 and more, replaced), the job has succeeded when its master has, and has failed when a replica has that nothing restarts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.emulator.controllers.conditions import holds
from tests.emulator.controllers.times import write_time

__all__ = ["JOB_NAME", "Address", "PortError", "Wanted", "labels_of", "next_status", "problems", "replicas_of", "wanted"]

Object = dict[str, Any]

JOB_NAME = "training.kubeflow.org/job-name"
_ROLES = ("Master", "Worker")
_PREFIX = "training.kubeflow.org"
_RETRYABLE = 128

#: The operator finds a replica's container, and the port of its master, by these names and by no others.
_CONTAINER, _PORT, _DEFAULT_PORT = "pytorch", "pytorchjob-port", 23456

#: What the operator puts before each worker's containers where there is a master. Its image runs as root. The operator takes
#: this from a file; the real one looks the master's name up until it is found, and this cluster resolves no names.
_INIT_CONTAINER = {"name": "init-pytorch", "image": "alpine:3.10", "command": ["sh", "-c", "true"]}


class PortError(ValueError):
    """The master's container does not have the port that the operator looks for."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the master is told to be: the name of its Service, or another `host` and `port` where names are not resolved.

    With `port` 0 it is the one that the master's container declares.
    """

    host: str = ""
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The pods and services that are to be created, and the pods to be deleted."""

    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    deleted: tuple[Object, ...] = ()


def replicas_of(job: Object) -> dict[str, int]:
    """Return how many pods each role of a job has."""
    roles = job["spec"].get("pytorchReplicaSpecs", {})
    return {role: roles[role].get("replicas", 1) for role in _ROLES if role in roles}


def labels_of(job: Object) -> dict[str, str]:
    """Return the labels by which a job's pods are found."""
    return {JOB_NAME: job["metadata"]["name"], f"{_PREFIX}/operator-name": "pytorchjob-controller"}


def wanted(job: Object, pods: Iterable[Object], address: Address) -> Wanted:
    """Return what must be created and deleted so that the job's replicas are there.

    Raises `PortError`, and nothing is created, where the master's port is not declared.
    """
    here = {pod["metadata"]["name"]: pod for pod in pods}
    policy = job["spec"].get("runPolicy", {})
    if policy.get("suspend"):
        return Wanted(deleted=_staying(here.values()))
    if _finished(job):
        return Wanted(deleted=_cleaned(here.values(), policy.get("cleanPodPolicy", "None")))
    names = [(role, index) for role, count in replicas_of(job).items() for index in range(count)]
    missing = [place for place in names if _pod_name(job, *place) not in here]
    address = Address(host=address.host, port=address.port or _declared_port(job)) if missing else address
    again = [pod for role, index in names if (pod := here.get(_pod_name(job, role, index))) and _restarts(job, role, pod)]
    return Wanted(
        pods=tuple(_pod(job, role, index, address) for role, index in missing),
        services=tuple(_service(job, role, index, address) for role, index in missing),
        deleted=_staying(again),
    )


def next_status(job: Object, pods: Iterable[Object], now: float) -> Object:
    """Return a job's status as its pods make it; what is finished stays so."""
    status: Object = copy.deepcopy(job.get("status", {}))
    conditions = status.setdefault("conditions", [])
    name = job["metadata"]["name"]
    if not conditions:
        status["conditions"] = _put(conditions, "Created", f"PyTorchJob {name} is created.", now)
        status["startTime"] = write_time(now)
    if _finished(job):
        return status
    by_role = {role: [pod for pod in pods if _role(pod) == role] for role in replicas_of(job)}
    status["replicaStatuses"] = {role: _counted(job, role, found) for role, found in by_role.items()}
    if job["spec"].get("runPolicy", {}).get("suspend"):
        status["conditions"] = _put(status["conditions"], "Suspended", f"PyTorchJob {name} is suspended.", now)
        return status
    kind, message = _verdict(job, status["replicaStatuses"], by_role)
    if kind:
        status["conditions"] = _put(status["conditions"], kind, message, now)
    if kind in {"Succeeded", "Failed"}:
        status["completionTime"] = write_time(now)
    return status


def _verdict(job: Object, counts: Object, by_role: dict[str, list[Object]]) -> tuple[str, str]:
    """Return which condition the counts ask for, and its message."""
    name, leading = job["metadata"]["name"], "Master" if "Master" in counts else "Worker"
    if counts[leading]["succeeded"] >= replicas_of(job)[leading]:
        return "Succeeded", f"PyTorchJob {name} is successfully completed."
    failed = {role: count["failed"] for role, count in counts.items() if count["failed"]}
    final = [role for role in failed if not _all_restart(job, role, by_role[role])]
    if final or _worn_out(job, by_role):
        what = ", ".join(f"{failed.get(role, 0)} {role}" for role in final) or "the back-off limit's"
        return "Failed", f"PyTorchJob {name} is failed because {what} replica(s) failed."
    if failed:
        what = ", ".join(f"{count} {role}" for role, count in failed.items())
        return "Restarting", f"PyTorchJob {name} is restarting because {what} replica(s) failed."
    if counts[leading]["active"]:
        return "Running", f"PyTorchJob {name} is running."
    return "", ""


def _worn_out(job: Object, by_role: dict[str, list[Object]]) -> bool:
    limit = job["spec"].get("runPolicy", {}).get("backoffLimit")
    if limit is None:
        return False
    restarts = sum(
        status.get("restartCount", 0)
        for role, pods in by_role.items()
        if _policy(job, role) in {"Always", "OnFailure"}
        for pod in pods
        for status in pod.get("status", {}).get("containerStatuses", [])
    )
    return bool(restarts > 0 if limit == 0 else restarts >= limit)


def _put(conditions: list[Object], kind: str, message: str, now: float) -> list[Object]:
    """Set a condition; of running and restarting only one is told, and what is finished runs no more."""
    if holds(conditions, kind):
        return conditions
    rival = {"Running": "Restarting", "Restarting": "Running"}.get(kind)
    at = write_time(now)
    kept = [condition for condition in conditions if condition["type"] not in {kind, rival}]
    if kind in {"Succeeded", "Failed", "Suspended"}:
        kept = [c | {"status": "False", "lastTransitionTime": at} if c["type"] == "Running" else c for c in kept]
    reason = f"PyTorchJob{kind}"
    fresh = {"type": kind, "status": "True", "reason": reason, "message": message}
    if kind in {"Running", "Created", "Restarting"}:
        kept = [c | {"status": "False", "lastTransitionTime": at} if c["type"] == "Suspended" else c for c in kept]
    return [*kept, fresh | {"lastUpdateTime": at, "lastTransitionTime": at}]


def _counted(job: Object, role: str, pods: list[Object]) -> Object:
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    dying = sum(1 for pod, phase in zip(pods, phases, strict=True) if phase == "Running" and _deleting(pod))
    selector = ",".join(f"{key}={value}" for key, value in sorted((labels_of(job) | _of_role(role)).items()))
    return {
        "active": phases.count("Running") - dying,
        "succeeded": phases.count("Succeeded"),
        # One that runs and is being deleted may never come to an end, so it is counted as one that has failed.
        "failed": phases.count("Failed") + dying,
        "selector": selector,
    }


def _finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return holds(conditions, "Succeeded") or holds(conditions, "Failed")


def _policy(job: Object, role: str) -> str:
    found: str = job["spec"]["pytorchReplicaSpecs"][role].get("restartPolicy", "OnFailure")
    return found


def _all_restart(job: Object, role: str, pods: list[Object]) -> bool:
    """Return whether each failed pod of a role is one that the operator starts again."""
    if _policy(job, role) == "ExitCode":
        return all(_restarts(job, role, pod) for pod in pods if pod.get("status", {}).get("phase") == "Failed")
    return _policy(job, role) != "Never"


def _restarts(job: Object, role: str, pod: Object) -> bool:
    if _policy(job, role) != "ExitCode" or pod.get("status", {}).get("phase") != "Failed":
        return False
    states = [s.get("state", {}).get("terminated") for s in pod["status"].get("containerStatuses", [])]
    codes = [state["exitCode"] for state in states if state]
    return bool(codes) and max(codes) >= _RETRYABLE


def _staying(pods: Iterable[Object]) -> tuple[Object, ...]:
    return tuple(pod for pod in pods if not _deleting(pod))


def _cleaned(pods: Iterable[Object], policy: str) -> tuple[Object, ...]:
    if policy == "All":
        return _staying(pods)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") in {"Running", "Pending"}]
    return _staying(running) if policy == "Running" else ()


def _deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _role(pod: Object) -> str:
    label: str = pod["metadata"].get("labels", {}).get(f"{_PREFIX}/replica-type", "")
    return label.capitalize()


def _of_role(role: str) -> dict[str, str]:
    return {f"{_PREFIX}/replica-type": role.lower()}


def problems(job: Object) -> list[str]:
    """Return what the operator's webhook refuses of a job."""
    found = []
    for role, spec in (job["spec"].get("pytorchReplicaSpecs") or {}).items():
        path = f"spec.pytorchReplicaSpecs[{role}]"
        containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
        where = f"{path}.template.spec.containers"
        if role not in _ROLES:
            found.append(f'{path}: Unsupported value: "{role}": supported values: "Master", "Worker"')
        if not containers:
            found.append(f"{where}: Required value: must be specified")
        found += [
            f"{where}[{i}].image: Required value: must be required" for i, c in enumerate(containers) if not c.get("image")
        ]
        if containers and all(container.get("name") != _CONTAINER for container in containers):
            found.append(f"{where}: Required value: must have at least one container with name {_CONTAINER}")
        if role == "Master" and spec.get("replicas") != 1:
            found.append(f"{path}.replicas: Forbidden: must be 1")
    return found


def _declared_port(job: Object) -> int:
    roles = job["spec"].get("pytorchReplicaSpecs", {})
    spec = roles["Master" if "Master" in roles else "Worker"]["template"]["spec"]
    for container in spec["containers"]:
        if container["name"] == _CONTAINER:
            ports = container.get("ports") or []
            # The operator's defaults declare the port where no port has its name.
            return next((int(port["containerPort"]) for port in ports if port.get("name") == _PORT), _DEFAULT_PORT)
    raise PortError("port not found")


# --- The objects -----------------------------------------------------------------------------------------------------------


def _pod_name(job: Object, role: str, index: int) -> str:
    return f"{job['metadata']['name']}-{role.lower()}-{index}"


def _metadata(job: Object, role: str, index: int) -> Object:
    labels = labels_of(job) | _of_role(role) | {f"{_PREFIX}/replica-index": str(index)}
    owner = {field: job[field] for field in ("apiVersion", "kind")}
    owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    return {
        "name": _pod_name(job, role, index),
        "namespace": job["metadata"]["namespace"],
        "labels": labels | ({f"{_PREFIX}/job-role": "master"} if role == "Master" else {}),
        "ownerReferences": [owner],
    }


def _pod(job: Object, role: str, index: int, address: Address) -> Object:
    template = copy.deepcopy(job["spec"]["pytorchReplicaSpecs"][role]["template"])
    given = template.get("metadata", {})
    metadata = _metadata(job, role, index)
    metadata["labels"] = given.get("labels", {}) | metadata["labels"]
    metadata |= {"annotations": given["annotations"]} if given.get("annotations") else {}
    spec = template["spec"]
    policy = _policy(job, role)
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    for container in spec["containers"]:
        container["env"] = [*container.get("env", []), *_environment(job, role, index, address)]
    if role == "Worker" and "Master" in replicas_of(job):
        spec["initContainers"] = [*spec.get("initContainers", []), copy.deepcopy(_INIT_CONTAINER)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _environment(job: Object, role: str, index: int, address: Address) -> list[Object]:
    counts = replicas_of(job)
    host = address.host or _pod_name(job, "Master" if "Master" in counts else "Worker", 0)
    rank = index + counts.get("Master", 0) if role == "Worker" else index
    values = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": address.port,
        "PET_MASTER_PORT": address.port,
        "MASTER_ADDR": host,
        "PET_MASTER_ADDR": host,
        "WORLD_SIZE": sum(counts.values()),
        "RANK": rank,
        "PET_NODE_RANK": rank,
        "PET_NNODES": sum(counts.values()),
        "PET_NPROC_PER_NODE": job["spec"].get("nprocPerNode", "auto"),
    }
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _service(job: Object, role: str, index: int, address: Address) -> Object:
    metadata = _metadata(job, role, index)
    spec = {
        "clusterIP": "None",
        "selector": metadata["labels"],
        "ports": [{"name": "pytorchjob-port", "port": address.port, "targetPort": address.port}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
