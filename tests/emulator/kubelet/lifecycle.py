"""The node controller: what happens to pods whose node was not heard of for a while, or is no more."""

from __future__ import annotations

import time

from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, stamp
from tests.emulator.kubelet.events import EventLog
from tests.emulator.kubelet.node import ready_conditions
from tests.emulator.kubelet.scheduler import tolerates
from tests.emulator.kubelet.status import conditioned
from tests.emulator.store import Version

__all__ = ["Lifecycle"]

#: Seconds of a real cluster: a node is silent so long before it is unknown; a pod of a deleted node is kept so long.
SILENT, ORPHANED = 40.0, 40.0

UNREACHABLE = "node.kubernetes.io/unreachable"
ENDED = ("Succeeded", "Failed")


class Lifecycle:
    """Looks at all nodes from time to time. Its clock runs `speed` times faster than the real one."""

    def __init__(self, api: Api, events: EventLog, speed: float) -> None:
        self._api, self._events, self._speed = api, events, speed
        self._silent: dict[str, float] = {}
        self._unknown: set[str] = set()
        self._deleted: dict[str, float] = {}
        self._tainted: dict[tuple[str, str], float] = {}

    def silent(self, name: str) -> None:
        self._silent[name] = time.monotonic()

    def heard(self, name: str) -> None:
        """The node is back: ready again, and free of the taints that its silence brought."""
        self._silent.pop(name, None)
        self._unknown.discard(name)
        self._change_node(name, "True", "KubeletReady", "kubelet is posting ready status", tainted=False)

    def deleted(self, name: str) -> None:
        self._deleted[name] = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        for name, since in list(self._silent.items()):
            if name not in self._unknown and (now - since) * self._speed >= SILENT:
                self._unknown.add(name)
                self._unreachable(name)
        self._look_at_taints(now)
        for name, since in list(self._deleted.items()):
            if self._api.store.get("nodes", "", name):  # another of the same name
                del self._deleted[name]
            elif (now - since) * self._speed >= ORPHANED:
                self._collect(name)

    def _look_at_taints(self, now: float) -> None:
        there = {
            (node.name, taint["key"]): taint
            for node in self._api.store.all("nodes")
            for taint in node.body["spec"].get("taints") or []
            if taint["effect"] == "NoExecute"
        }
        self._tainted = {place: self._tainted.get(place, now) for place in there}
        for (name, key), since in self._tainted.items():
            self._evict(name, there[name, key], (now - since) * self._speed)

    def _unreachable(self, name: str) -> None:
        self._change_node(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", tainted=True)
        for version in self._pods(name):
            conditions = conditioned(version.body["status"].get("conditions") or [], "Ready", False)
            self._set_status(version, {"conditions": conditions})
            self._events.add(version.body, "Warning", "NodeNotReady", "Node is not ready", "node-controller")

    def _evict(self, name: str, taint: Body, tainted: float) -> None:
        """Delete the pods that tolerate the taint no longer; on a node that is silent nobody is there to confirm it."""
        for version in self._pods(name):
            if "deletionTimestamp" in version.body["metadata"] or version.body["status"].get("phase") in ENDED:
                continue
            toleration = tolerates(version.body["spec"], taint)
            patience = 0.0 if toleration is None else toleration.get("tolerationSeconds")
            if patience is not None and tainted >= patience:
                self._disrupt(version, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
                self._delete(version, {})

    def _collect(self, name: str) -> None:
        for version in self._pods(name):
            if version.body["status"].get("phase") not in ENDED:
                self._disrupt(version, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed")
            self._delete(version, {"gracePeriodSeconds": 0})

    def _pods(self, node: str) -> list[Version]:
        return [version for version in self._api.store.all("pods") if version.body["spec"].get("nodeName") == node]

    def _disrupt(self, version: Version, reason: str, message: str, *, phase: str = "") -> None:
        conditions = conditioned(version.body["status"].get("conditions") or [], "DisruptionTarget", True, reason, message)
        self._set_status(version, {"conditions": conditions, **({"phase": phase} if phase else {})})

    def _set_status(self, version: Version, change: Body) -> None:
        new = clone(version.body)
        new["status"].update(change)
        self._api.quietly([lambda: self._api.update(self._api.kind("pods"), version.body, new, subresource="status")])

    def _delete(self, version: Version, options: Body) -> None:
        wanted = {**options, "preconditions": {"uid": version.body["metadata"]["uid"]}}
        self._api.quietly([lambda: self._api.delete(self._api.kind("pods"), version.namespace, version.name, wanted)])

    def _change_node(self, name: str, status: str, reason: str, message: str, *, tainted: bool) -> None:
        found = self._api.store.get("nodes", "", name)
        if found is None:
            return
        new = clone(found.body)
        taints = [taint for taint in new["spec"].get("taints") or [] if taint["key"] != UNREACHABLE]
        if tainted:
            taints += [{"key": UNREACHABLE, "effect": effect, "timeAdded": stamp()} for effect in ("NoSchedule", "NoExecute")]
        new["spec"] = {**new["spec"], "taints": taints}
        spoken = self._api.update(self._api.kind("nodes"), found.body, new)
        told = clone(spoken)
        told["status"]["conditions"] = ready_conditions(status, reason, message)
        self._api.update(self._api.kind("nodes"), spoken, told, subresource="status")
