"""KubeRay's part for RayJobs and RayClusters: pods as the operator makes them, and Ray's Jobs API.

The head pod runs a whole Ray cluster of this machine (`ray_head.py`) with the nodes of its worker groups; the worker pods only
stand for their machines.
"""

from __future__ import annotations

import copy
import json
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.emulator.controllers.api import Api, Kind, Object
from tests.emulator.controllers.loop import Controller, Key, key_of

__all__ = ["CLUSTERS", "JOBS", "RayClusterController", "RayJobController"]

JOBS = Kind("ray.io/v1", "rayjobs")
CLUSTERS = Kind("ray.io/v1", "rayclusters")
PODS = Kind("v1", "pods")

#: Label of KubeRay's pods, and annotation with the port of the dashboard where all pods share one machine.
_CLUSTER, _TYPE, _PORT = "ray.io/cluster", "ray.io/node-type", "emulator/dashboard-port"

#: Seconds between two looks at a cluster or a job.
_LOOK = 0.3

_ROOT = str(Path(__file__).parents[3])


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayClusterController(Controller):
    """Makes the pods of RayClusters."""

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(CLUSTERS, lambda _event, found: self.agenda.add(key_of(found)))
        group(PODS, self._pod)

    def _pod(self, event: str, pod: Object) -> None:
        name = pod["metadata"].get("labels", {}).get(_CLUSTER)
        if name:
            self.agenda.add((key_of(pod)[0], name))

    async def reconcile(self, key: Key) -> float | None:
        cluster = await self.api.get(CLUSTERS, *key)
        if cluster is None or "deletionTimestamp" in cluster["metadata"]:
            return None
        pods = await _pods(self.api, cluster)
        if cluster["spec"].get("suspend"):
            for pod in pods:
                await self.api.delete(PODS, pod)
            await _told(self.api, CLUSTERS, cluster, {"state": "suspended"})
            return None
        known = {pod["metadata"]["name"] for pod in pods}
        for pod in _wanted(cluster):
            if pod["metadata"]["name"] not in known:
                await self.api.create(PODS, key[0], pod)
        head = next((pod for pod in pods if pod["metadata"]["labels"][_TYPE] == "head"), None)
        ready = head is not None and await _answers(head)
        await _told(self.api, CLUSTERS, cluster, {"state": "ready"} if ready else {})
        return None if ready else _LOOK


class RayJobController(Controller):
    """Has a RayCluster made for each RayJob, submits its entry point, and tells what becomes of it."""

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(JOBS, lambda _event, found: self.agenda.add(key_of(found)))
        group(CLUSTERS, self._cluster)

    def _cluster(self, event: str, cluster: Object) -> None:
        for owner in cluster["metadata"].get("ownerReferences", []):
            self.agenda.add((key_of(cluster)[0], owner["name"]))

    async def reconcile(self, key: Key) -> float | None:
        job = await self.api.get(JOBS, *key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return None
        status = job.get("status") or {}
        cluster = await self._of(job, status)
        if status.get("jobDeploymentStatus") in {"Complete", "Failed"}:
            if cluster is not None and job["spec"].get("shutdownAfterJobFinishes"):
                await self.api.delete(CLUSTERS, cluster)
            return None
        if job["spec"].get("suspend"):
            if cluster is not None:
                await self.api.delete(CLUSTERS, cluster)
            await _told(self.api, JOBS, job, {"jobDeploymentStatus": "Suspended", "jobStatus": "", "jobId": ""})
            return None
        if cluster is None:
            made = _cluster_of(job)
            told = {"jobDeploymentStatus": "Initializing", "rayClusterName": made["metadata"]["name"]}
            await _told(self.api, JOBS, job, told | {"jobId": f"{key[1]}-{secrets.token_hex(3)}", "jobStatus": ""})
            await self.api.create(CLUSTERS, key[0], made)
            return _LOOK
        if (cluster.get("status") or {}).get("state") == "ready":
            await self._follow(job, cluster)
        return _LOOK

    async def _of(self, job: Object, status: Object) -> Object | None:
        name = status.get("rayClusterName")
        return await self.api.get(CLUSTERS, key_of(job)[0], name) if name else None

    async def _follow(self, job: Object, cluster: Object) -> None:
        head = next((p for p in await _pods(self.api, cluster) if p["metadata"]["labels"][_TYPE] == "head"), None)
        uid = job["status"]["jobId"]
        found = None if head is None else await _ask(head, "GET", f"/api/jobs/{uid}")
        if found is None:
            running = job["status"].get("jobStatus") == "RUNNING"
            if running:  # KubeRay waits for a while before it says so
                told = {"jobDeploymentStatus": "Failed", "reason": "JobStatusCheckTimeoutExceeded"}
                await _told(self.api, JOBS, job, told | {"message": "the head of the cluster does not answer"})
            elif head is not None:
                body = {"entrypoint": job["spec"]["entrypoint"], "submission_id": uid}
                await _ask(head, "POST", "/api/jobs/", body)
            return
        word = str(found["status"])
        ended = {"SUCCEEDED": "Complete", "FAILED": "Failed", "STOPPED": "Failed"}.get(word, "Running")
        told = {"jobStatus": word, "jobDeploymentStatus": ended, "message": str(found.get("message") or "")}
        await _told(self.api, JOBS, job, told | ({"reason": "AppFailed"} if ended == "Failed" else {}))


async def _told(api: Api, kind: Kind, found: Object, status: Object) -> None:
    before = found.get("status") or {}
    if {**before, **status} != before:
        await api.patch(kind, *key_of(found), {"status": status}, part="status")


async def _pods(api: Api, cluster: Object) -> list[Object]:
    name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
    pods, _version = await api.list(PODS, cluster["metadata"]["namespace"], f"{_CLUSTER}={name}")
    return [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", []))]


async def _answers(head: Object) -> bool:
    running = (head.get("status") or {}).get("phase") == "Running"
    return running and await _ask(head, "GET", "/api/version") is not None


async def _ask(head: Object, method: str, path: str, body: Any = None) -> Any:
    """Return what the dashboard of a head answers; None where it does not answer, or says no."""
    port = head["metadata"]["annotations"][_PORT]
    limit = aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.request(method, f"http://127.0.0.1:{port}{path}", json=body) as answer,
        ):
            return json.loads(await answer.text()) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


def _cluster_of(job: Object) -> Object:
    owner = {"apiVersion": job["apiVersion"], "kind": "RayJob", "name": key_of(job)[1], "uid": job["metadata"]["uid"]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": f"{key_of(job)[1]}-{secrets.token_hex(3)}",
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": copy.deepcopy(job["spec"]["rayClusterSpec"]),
    }


def _wanted(cluster: Object) -> Iterator[Object]:
    """Yield the pods of a cluster: Ray's container has the command that starts it."""
    spec = cluster["spec"]
    groups = spec.get("workerGroupSpecs") or []
    nodes = [group["rayStartParams"] for group in groups for _ in range(group["replicas"])]
    ports = {"gcs": free_port(), "dashboard": free_port()}
    start = [sys.executable, "-m", "tests.emulator.controllers.ray_head"]
    start += [str(ports["gcs"]), str(ports["dashboard"]), json.dumps(nodes)]
    shared = {"PYTHONPATH": _ROOT, "RAY_ADDRESS": f"127.0.0.1:{ports['gcs']}"}
    head = _pod(cluster, "head", spec["headGroupSpec"]["template"], start, shared)
    head["metadata"]["annotations"][_PORT] = str(ports["dashboard"])
    yield head
    for group in groups:
        for index in range(group["replicas"]):
            yield _pod(cluster, f"{group['groupName']}-worker-{index}", group["template"], ["sleep", "100000"], {})


def _pod(cluster: Object, name: str, template: Object, command: list[str], variables: dict[str, str]) -> Object:
    metadata, own = cluster["metadata"], copy.deepcopy(template)
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": metadata["name"], "uid": metadata["uid"]}
    labels = {**(own.get("metadata") or {}).get("labels", {}), _CLUSTER: metadata["name"]}
    labels[_TYPE] = "head" if name == "head" else "worker"
    spec = own["spec"]
    spec["containers"][0]["command"] = command
    for container in spec["containers"]:
        given = {one["name"] for one in container.get("env", [])}
        more = [{"name": n, "value": v} for n, v in variables.items() if n not in given]
        container["env"] = [*container.get("env", []), *more]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{name}",
            "labels": labels,
            "annotations": dict((own.get("metadata") or {}).get("annotations", {})),
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec,
    }
