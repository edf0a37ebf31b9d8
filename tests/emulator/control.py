"""The hand of the test: what it can do to the cluster over HTTP, under /emulator/, from any process.

Every operation is a POST of its keyword arguments as JSON to /emulator/NAME. `Troubles` is the other end of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.emulator.bodies import clone
from tests.emulator.errors import ApiError, bad_request
from tests.emulator.kubelet.node import Node
from tests.emulator.kubelet.pod import PodRun
from tests.emulator.options import NodeOptions

if TYPE_CHECKING:
    from tests.emulator.emulator import Emulator

__all__ = ["Control"]

Operation = Callable[..., Awaitable[Any]]


class Control:
    """The operations, by name."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._operations: dict[str, Operation] = {
            name: getattr(self, name) for name in vars(type(self)) if not name.startswith("_") and name != "handle"
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["tail"]
        if name not in self._operations:
            return web.json_response({"error": f"no operation {name!r}; there are {sorted(self._operations)}"}, status=404)
        told = await request.json() if request.can_read_body else {}
        try:
            return web.json_response({"result": await self._operations[name](**told)})
        except ApiError as error:
            return web.json_response({"error": error.message}, status=error.code)
        except (TypeError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)

    # ------------------------------------------------------------------------------------------------------------- faults

    async def fault(self, **told: Any) -> None:
        self._emulator.faults.add(**told)
        if told["kind"] == "outage":
            self._emulator.server.hang_up_streams()

    async def heal(self, kind: str = "") -> None:
        self._emulator.faults.clear(kind)

    async def compact(self) -> None:
        """Forget the history, and cut all streams: whoever resumes finds that its version is gone."""
        self._emulator.api.store.compact()
        self._emulator.server.hang_up_streams()

    async def cut_streams(self) -> None:
        self._emulator.server.hang_up_streams()

    # -------------------------------------------------------------------------------------------------------------- nodes

    def _node(self, name: str) -> Node:
        if name not in self._emulator.cluster.nodes:
            raise bad_request(f"no kubelet has a node {name!r}; there are {sorted(self._emulator.cluster.nodes)}")
        return self._emulator.cluster.nodes[name]

    async def lose_node(self, name: str, *, power: bool = True, silent: bool = False) -> None:
        """The node is not heard; with `power` its machine is off, without it its processes go on unheard.

        With `silent` the connections of its processes do not end, either: nobody closes them where the power fails.
        """
        await self._node(name).lose(power=power, silent=silent)
        self._emulator.cluster.lifecycle.silent(name)

    async def restore_node(self, name: str) -> None:
        await self._node(name).boot()
        self._node(name).back()
        self._emulator.cluster.lifecycle.heard(name)

    async def add_node(self, **told: Any) -> None:
        self._emulator.cluster.add_node(NodeOptions(**told))

    async def cordon(self, name: str) -> None:
        self._change_node(name, lambda node: node["spec"].update(unschedulable=True))

    async def uncordon(self, name: str) -> None:
        self._change_node(name, lambda node: node["spec"].pop("unschedulable", None))

    async def label_node(self, name: str, labels: dict[str, str]) -> None:
        self._change_node(name, lambda node: node["metadata"]["labels"].update(labels))

    async def untaint_node(self, name: str, key: str) -> None:
        def change(node: Any) -> None:
            node["spec"]["taints"] = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != key]

        self._change_node(name, change)

    async def taint_node(self, name: str, key: str, effect: str, value: str = "") -> None:
        taint = {"key": key, "effect": effect, **({"value": value} if value else {})}
        self._change_node(name, lambda node: node["spec"].update(taints=[*(node["spec"].get("taints") or []), taint]))

    def _change_node(self, name: str, change: Callable[[Any], Any]) -> None:
        api = self._emulator.api
        old = api.get(api.kind("nodes"), "", name).body
        new = clone(old)
        change(new)
        api.update(api.kind("nodes"), old, new)

    # --------------------------------------------------------------------------------------------------------------- pods

    def _run(self, name: str, namespace: str) -> PodRun:
        api = self._emulator.api
        run = self._emulator.cluster.run_of(api.get(api.kind("pods"), namespace, name).body)
        if run is None:
            raise bad_request(f"pod {namespace}/{name} is on no node of a kubelet")
        return run

    async def evict_pod(
        self, name: str, namespace: str = "default", message: str = "The node was low on resource: memory."
    ) -> None:
        """What a kubelet under pressure does: the pod fails with the reason Evicted."""
        self._run(name, namespace).evict(message)

    async def oom_pod(self, name: str, namespace: str = "default", container: str = "") -> None:
        await self._run(name, namespace).kill(container, oom=True)

    async def kill_pod(self, name: str, namespace: str = "default", container: str = "") -> None:
        """SIGKILL to a pod's processes, with nobody saying why."""
        await self._run(name, namespace).kill(container)

    async def preempt_pod(self, name: str, namespace: str = "default") -> None:
        """What the scheduler does to make room for a pod of a higher priority."""
        api = self._emulator.api
        pod = api.get(api.kind("pods"), namespace, name).body
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        self._emulator.pods.disrupt(pod, "PreemptionByScheduler", message, {})

    async def fail_image(self, pattern: str) -> None:
        self._emulator.cluster.images.failing.add(pattern)

    async def mend_image(self, pattern: str) -> None:
        self._emulator.cluster.images.failing.discard(pattern)

    async def say(self, name: str, text: str, namespace: str = "default") -> None:
        """What the log of a pod is that no kubelet runs."""
        self._emulator.pods.texts[namespace, name] = text

    async def vanish(self, resource: str, name: str, namespace: str = "") -> None:
        """Take an object away without grace, finalizers or anybody's leave, as when etcd is restored from a backup."""
        self._emulator.api.store.remove(resource, namespace, name)

    # -------------------------------------------------------------------------------------------------- what was going on

    async def uses(self, user: str = "") -> list[dict[str, Any]]:
        """The rights that were made use of, by everybody or by one user."""
        found = sorted(use for use in self._emulator.access.uses if not user or use.user == user)
        return [dataclasses.asdict(use) for use in found]

    async def forget_uses(self) -> None:
        self._emulator.access.uses.clear()

    async def requests(self) -> list[dict[str, Any]]:
        """How many requests there were, by user, verb and resource."""
        counted = self._emulator.server.requests.items()
        return [{"user": user, "verb": verb, "resource": resource, "count": count} for (user, verb, resource), count in counted]

    async def watches(self) -> dict[str, int]:
        return self._emulator.server.hub.counts()

    async def token(self, account: str, namespace: str = "default") -> str:
        return self._emulator.access.token_of(namespace, account)
