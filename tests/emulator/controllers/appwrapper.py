"""AppWrapper's controller: looks through the API, asks the rules, and does what they say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tests.emulator.controllers.api import Api, ApiError, Kind, Object
from tests.emulator.controllers.appwrapper_rules import FINALIZER, LABEL, Creation, Look, Step, step
from tests.emulator.controllers.injection import InjectionError, component_object
from tests.emulator.controllers.loop import Controller, Key, key_of
from tests.emulator.controllers.podsets import PodSetError
from tests.emulator.controllers.settings import Settings
from tests.emulator.controllers.times import write_time

__all__ = ["WRAPPERS", "AppWrapperController"]

log = logging.getLogger(__name__)

WRAPPERS = Kind("workload.codeflare.dev/v1beta2", "appwrappers")
PODS = Kind("v1", "pods")
NODES = Kind("v1", "nodes", namespaced=False)
EVENTS = Kind("v1", "events")

#: What must be used no more on a node with this label.
_HEALTH, _EVICT, _USED = "autopilot.ibm.com/gpuhealth", "EVICT", frozenset({"nvidia.com/gpu"})

#: Reasons of the API that no second try can mend.
_FATAL = {"NoMatch", "Invalid"}

#: Steps of one look; more would mean that the rules go round in circles.
_MOST_STEPS = 20


class AppWrapperController(Controller):
    """Runs the wrappers of a cluster; what it waits for lasts `speed` times shorter than it is written.

    As the reference it follows wrappers and pods that have succeeded, and looks at all else when the rules want it.
    """

    def __init__(self, api: Api, *, speed: float = 1.0) -> None:
        super().__init__(api)
        self._speed = speed
        self._flagged: dict[str, frozenset[str]] = {}

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(WRAPPERS, lambda _event, found: self.agenda.add(key_of(found)))
        group(PODS, self._pod)
        group(NODES, self._node)

    def _pod(self, event: str, pod: Object) -> None:
        name = pod["metadata"].get("labels", {}).get(LABEL)
        if name and pod.get("status", {}).get("phase") == "Succeeded":
            self.agenda.add((key_of(pod)[0], name))

    def _node(self, event: str, node: Object) -> None:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        self._flagged.pop(name, None)
        if event != "DELETED" and labels.get(_HEALTH) == _EVICT:
            self._flagged[name] = _USED

    async def reconcile(self, key: Key) -> float | None:
        try:
            return await self._steps(key)
        except PodSetError as error:  # the webhook refuses such a wrapper where it is asked
            log.warning("AppWrapper %s: %s", key, error)
            return None

    async def _steps(self, key: Key) -> float | None:
        creation: Creation | None = None
        for _ in range(_MOST_STEPS):
            wrapper = await self.api.get(WRAPPERS, *key)
            if wrapper is None:
                return None
            components = await self._components(wrapper)
            pods = await self._pods(key)
            made = step(
                Look(
                    wrapper=wrapper,
                    components=components,
                    pods=pods,
                    flagged=self._flagged,
                    creation=creation,
                    settings=Settings.read(wrapper["metadata"].get("annotations", {})).at_speed(self._speed),
                    now=time.time(),
                )
            )
            creation = await self._perform(wrapper, components, pods, made)
            if made.after != 0.0:
                return made.after
        raise AssertionError(f"AppWrapper {key}: the rules do not come to rest")

    async def _pods(self, key: Key) -> tuple[Object, ...]:
        pods, _version = await self.api.list(PODS, key[0], f"{LABEL}={key[1]}")
        return tuple(pods)

    async def _components(self, wrapper: Object) -> tuple[Object | None, ...]:
        found: list[Object | None] = []
        for component in wrapper["spec"]["components"]:
            template = component["template"]
            try:
                kind = await self.api.kind_of(template["apiVersion"], template["kind"])
                there = await self.api.get(kind, wrapper["metadata"]["namespace"], template["metadata"]["name"])
            except ApiError as error:
                if error.reason != "NoMatch":
                    raise
                there = None
            found.append(there if there is not None and _owned(there, wrapper) else None)
        return tuple(found)

    async def _perform(
        self, wrapper: Object, components: tuple[Object | None, ...], pods: tuple[Object, ...], made: Step
    ) -> Creation | None:
        """Write the status first: what was decided on an older wrapper is not done."""
        namespace, name = key_of(wrapper)
        if made.status != wrapper.get("status", {}):
            version = {"resourceVersion": wrapper["metadata"]["resourceVersion"]}
            body = {"metadata": version, "status": made.status}
            wrapper = await self.api.patch(WRAPPERS, namespace, name, body, part="status")
        if made.event is not None:
            await self._tell(wrapper, *made.event)
        for index in made.delete:
            found = components[index]
            assert found is not None
            kind = await self.api.kind_of(found["apiVersion"], found["kind"])
            await self.api.delete(kind, found, now=made.delete_now)
        if made.kill_pods:
            for pod in pods:
                await self.api.delete(PODS, pod, now=True)
        if made.finalizer is not None:
            await self._finalizer(wrapper, wanted=made.finalizer)
        return await self._create(wrapper) if made.create else None

    async def _finalizer(self, wrapper: Object, *, wanted: bool) -> None:
        metadata = wrapper["metadata"]
        others = [finalizer for finalizer in metadata.get("finalizers", []) if finalizer != FINALIZER]
        finalizers = [*others, FINALIZER] if wanted else others
        if finalizers != metadata.get("finalizers", []):
            version = {"resourceVersion": metadata["resourceVersion"]}
            body = {"metadata": {**version, "finalizers": finalizers or None}}
            await self.api.patch(WRAPPERS, metadata["namespace"], metadata["name"], body)

    async def _create(self, wrapper: Object) -> Creation:
        for index in range(len(wrapper["spec"]["components"])):
            try:
                wanted = component_object(wrapper, index)
            except (PodSetError, InjectionError) as error:
                return Creation(error=str(error), fatal=True)
            made = await self._create_one(wrapper, wanted)
            if made.error:
                return made
        return Creation()

    async def _create_one(self, wrapper: Object, wanted: Object) -> Creation:
        namespace, name = wrapper["metadata"]["namespace"], wanted["metadata"]["name"]
        try:
            kind = await self.api.kind_of(wanted["apiVersion"], wanted["kind"])
            there = await self.api.get(kind, namespace, name)
            if there is not None:
                theirs = not _owned(there, wrapper)
                return Creation(error=f"{name} is there and is somebody else's", fatal=True) if theirs else Creation()
            await self.api.create(kind, namespace, wanted)
        except ApiError as error:
            return Creation(error=str(error), fatal=error.reason in _FATAL)
        return Creation()

    async def _tell(self, wrapper: Object, reason: str, message: str) -> None:
        metadata = wrapper["metadata"]
        involved = {field: wrapper[field] for field in ("apiVersion", "kind")}
        involved |= {field: metadata[field] for field in ("namespace", "name", "uid")}
        event = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": involved,
            "type": "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": "appwrapper"},
            "firstTimestamp": write_time(time.time()),
            "lastTimestamp": write_time(time.time()),
            "count": 1,
        }
        await self.api.create(EVENTS, metadata["namespace"], event)


def _owned(found: Object, wrapper: Object) -> bool:
    owners = found["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == wrapper["metadata"]["uid"] and owner.get("controller") for owner in owners)
