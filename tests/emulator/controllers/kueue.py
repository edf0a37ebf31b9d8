"""The part of Kueue that a test needs: queues with quotas for AppWrappers and plain pods, and preemption on demand.

Kueue's own objects are replaced by one ConfigMap, `kueue-system/queues`: `quotas` is JSON by queue and resource (`pods` counts
pods), `preempted` JSON with the names (`namespace/name`, of a wrapper, a pod group or a single pod) that must not run.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.emulator.controllers import conditions, kueue_groups
from tests.emulator.controllers.api import Api, ApiError, Kind, Object
from tests.emulator.controllers.kueue_groups import FINALIZER, GATE, GROUP, MANAGED, QUEUE, Group
from tests.emulator.controllers.kueue_quota import Claim, rule
from tests.emulator.controllers.loop import Controller, Key, key_of
from tests.emulator.controllers.podsets import at_path, pod_sets
from tests.emulator.controllers.times import write_time

__all__ = ["CONFIG", "NAMESPACE", "KueueController", "Queues"]

NAMESPACE, CONFIG = "kueue-system", "queues"

CONFIGMAPS = Kind("v1", "configmaps")
_NAMESPACES = Kind("v1", "namespaces", namespaced=False)
PODS = Kind("v1", "pods")
WRAPPERS = Kind("workload.codeflare.dev/v1beta2", "appwrappers")
WORKLOADS = Kind("kueue.x-k8s.io/v1beta1", "workloads")

#: Label of a Workload: the uid of the wrapper that it stands for.
_OF = "kueue.x-k8s.io/job-uid"

#: Everything is looked at together: who may begin depends on everybody else.
_ALL: Key = ("", "")


class Queues:
    """What a test says to Kueue, through the API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def ready(self) -> None:
        """See to it that there is a place for what is said."""
        if await self._api.get(_NAMESPACES, "", NAMESPACE) is None:
            await self._api.create(_NAMESPACES, "", {"metadata": {"name": NAMESPACE}})

    async def set(self, **data: Any) -> None:
        """Write `quotas` (by queue and resource) or `preempted` (names); what is not given stays as it is."""
        text = {"data": {field: json.dumps(value) for field, value in data.items()}}
        try:
            await self._api.patch(CONFIGMAPS, NAMESPACE, CONFIG, text)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._api.create(CONFIGMAPS, NAMESPACE, {"metadata": {"name": CONFIG}} | text)

    async def quota(self, queue: str, **amounts: float) -> None:
        """Give a queue these amounts, `pods=4` or `cpu=2`."""
        await self.set(quotas={**(await self._read("quotas", {})), queue: amounts})

    async def preempt(self, name: str, namespace: str = "default") -> None:
        """Stop a workload, and let it not begin again until `allow`."""
        await self.set(preempted=[*(await self._read("preempted", [])), f"{namespace}/{name}"])

    async def allow(self, name: str, namespace: str = "default") -> None:
        """Let a preempted workload begin again when there is room."""
        await self.set(preempted=[key for key in await self._read("preempted", []) if key != f"{namespace}/{name}"])

    async def _read(self, field: str, default: Any) -> Any:
        found = await self._api.get(CONFIGMAPS, NAMESPACE, CONFIG)
        return json.loads((found or {}).get("data", {}).get(field, "null")) or default


class KueueController(Controller):
    """Admits, ungates and preempts. What it remembers of groups is what Kueue keeps in its Workload objects."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._groups: dict[str, Group] = {}

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(CONFIGMAPS, lambda _event, found: self._config(found))
        group(WRAPPERS, lambda _event, _found: self.agenda.add(_ALL))
        group(WORKLOADS, lambda _event, _found: self.agenda.add(_ALL))
        group(PODS, self._pod)

    def _config(self, found: Object) -> None:
        if key_of(found) == (NAMESPACE, CONFIG):
            self.agenda.add(_ALL)

    def _pod(self, event: str, pod: Object) -> None:
        if MANAGED in pod["metadata"].get("labels", {}):
            self.agenda.add(_ALL)

    async def reconcile(self, key: Key) -> float | None:
        config = (await self.api.get(CONFIGMAPS, NAMESPACE, CONFIG) or {}).get("data", {})
        banned = set(json.loads(config.get("preempted", "[]")))
        wrappers = {f"{'/'.join(key_of(w))}": w for w in await self._wrappers()}
        banned |= await self._inactive(wrappers)
        members = await self._members()
        for name in {*self._groups, *members}:
            await self._tidy(name, members.get(name, []))
        claims = [*_of_wrappers(wrappers, banned), *self._of_groups(members, banned)]
        ruling = rule(claims, json.loads(config.get("quotas", "{}")))
        for name in ruling.start:
            await self._start(name, wrappers.get(name), members.get(name, []))
        for name in ruling.stop:
            await self._stop(name, wrappers.get(name), members.get(name, []))
        return None

    async def _wrappers(self) -> list[Object]:
        try:
            found, _version = await self.api.list(WRAPPERS)
        except ApiError as error:
            if error.status != 404:  # no such kind in this cluster
                raise
            return []
        return [wrapper for wrapper in found if QUEUE in wrapper["metadata"].get("labels", {})]

    async def _inactive(self, wrappers: dict[str, Object]) -> set[str]:
        """See to it that each wrapper has its Workload; return those whose Workload somebody has set inactive."""
        found, _version = await self.api.list(WORKLOADS)
        known = {workload["metadata"]["labels"].get(_OF): workload for workload in found}
        for wrapper in wrappers.values():
            if wrapper["metadata"]["uid"] not in known and "deletionTimestamp" not in wrapper["metadata"]:
                await self.api.create(WORKLOADS, key_of(wrapper)[0], _workload(wrapper))
        active = {uid for uid, workload in known.items() if workload["spec"].get("active", True)}
        return {name for name, w in wrappers.items() if w["metadata"]["uid"] in known.keys() - active}

    async def _members(self) -> dict[str, list[Object]]:
        pods, _version = await self.api.list(PODS, labels=f"{MANAGED}=true")
        members: dict[str, list[Object]] = defaultdict(list)
        for pod in pods:
            labels = pod["metadata"]["labels"]
            members[f"{key_of(pod)[0]}/{labels.get(GROUP) or key_of(pod)[1]}"].append(pod)
        return members

    async def _tidy(self, name: str, pods: list[Object]) -> None:
        found = kueue_groups.look_at(self._groups.pop(name, None), pods)
        if found.group is not None:
            self._groups[name] = found.group
        for pod in found.open:
            await self._patch(pod, {"spec": {"schedulingGates": [g for g in _gates(pod) if g["name"] != GATE] or None}})
        for pod in found.release:
            kept = [finalizer for finalizer in pod["metadata"].get("finalizers", []) if finalizer != FINALIZER]
            await self._patch(pod, {"metadata": {"finalizers": kept or None}})
        for pod in found.delete:
            await self.api.delete(PODS, pod)

    def _of_groups(self, members: dict[str, list[Object]], banned: set[str]) -> Iterator[Claim]:
        for name, group in self._groups.items():
            uses = any(p.get("status", {}).get("phase") == "Running" for p in members.get(name, []))
            yield Claim(
                key=name,
                queue=group.queue,
                created=group.created,
                needs=group.needs,
                runs=group.admitted,
                holds=group.admitted or uses,
                banned=name in banned,
            )

    async def _start(self, name: str, wrapper: Object | None, pods: list[Object]) -> None:
        if wrapper is not None:
            await self.api.patch(WRAPPERS, *key_of(wrapper), {"spec": {"suspend": False}})
            return
        self._groups[name] = dataclasses.replace(self._groups[name], admitted=True)
        await self._tidy(name, pods)

    async def _stop(self, name: str, wrapper: Object | None, pods: list[Object]) -> None:
        if wrapper is not None:
            await self.api.patch(WRAPPERS, *key_of(wrapper), {"spec": {"suspend": True}})
            return
        self._groups[name] = dataclasses.replace(self._groups[name], admitted=False)
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"] or kueue_groups.gated(pod):
                continue
            await self._mark(pod)
            await self.api.delete(PODS, pod)

    async def _mark(self, pod: Object) -> None:
        """Say why a pod is deleted, as Kueue does."""
        told = conditions.find(pod.get("status", {}).get("conditions", []), "TerminationTarget")
        if told is None:
            condition = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted"}
            condition |= {"message": "Preempted to make room in the queue", "lastTransitionTime": write_time(time.time())}
            await self._patch(pod, {"status": {"conditions": [condition]}}, part="status")

    async def _patch(self, pod: Object, body: Object, part: str = "") -> None:
        try:
            await self.api.patch(PODS, *key_of(pod), body, part=part, strategic=bool(part))
        except ApiError as error:
            if error.status != 404:
                raise


def _workload(wrapper: Object) -> Object:
    metadata = wrapper["metadata"]
    owner = {"apiVersion": wrapper["apiVersion"], "kind": wrapper["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": f"appwrapper-{metadata['name']}-{metadata['uid'][:5]}",
            "labels": {_OF: metadata["uid"]},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {"queueName": metadata["labels"][QUEUE], "active": True},
    }


def _gates(pod: Object) -> list[Object]:
    found: list[Object] = pod["spec"].get("schedulingGates", [])
    return found


def _of_wrappers(wrappers: dict[str, Object], banned: set[str]) -> Iterator[Claim]:
    for name, wrapper in wrappers.items():
        status = wrapper.get("status", {})
        holds = conditions.holds(status.get("conditions", []), "QuotaReserved")
        over = status.get("phase") == "Succeeded" or (status.get("phase") == "Failed" and not holds)
        if over:
            continue
        needs: dict[str, float] = defaultdict(float)
        for component in wrapper["spec"]["components"]:
            for pod_set in pod_sets(component):
                spec = at_path(component, pod_set["path"]).get("spec", {})
                for resource, amount in kueue_groups.wants(spec, pod_set["replicas"]).items():
                    needs[resource] += amount
        runs = not wrapper["spec"].get("suspend", False)
        yield Claim(
            key=name,
            queue=wrapper["metadata"]["labels"][QUEUE],
            created=wrapper["metadata"].get("creationTimestamp", ""),
            needs=dict(needs),
            runs=runs,
            holds=runs or holds,
            banned=name in banned,
        )
