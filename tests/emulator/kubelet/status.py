"""What a kubelet says of a pod, from the states of its containers: decided here, written elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.emulator.bodies import Body, clone, stamp
from tests.emulator.kubelet.logs import ContainerLog

__all__ = ["ContainerState", "conditioned", "pod_status"]


@dataclass
class ContainerState:
    """A container as the kubelet knows it. Exactly one of `waiting`, `running`, `terminated` is set."""

    name: str
    image: str
    role: str
    """`init`, `sidecar` or `main`."""
    waiting: Body | None = None
    running: Body | None = None
    terminated: Body | None = None
    last: Body | None = None
    """How it ended the time before."""
    restarts: int = 0
    log: ContainerLog = field(default_factory=ContainerLog)
    previous_log: ContainerLog | None = None
    mark: str = ""

    def wait(self, reason: str, message: str = "") -> None:
        if self.terminated:
            self.last = self.terminated
        self.waiting = {"reason": reason, **({"message": message} if message else {})}
        self.running = self.terminated = None

    def run(self, mark: str) -> None:
        if self.terminated:
            self.last = self.terminated
        self.mark = mark
        self.running, self.waiting, self.terminated = {"startedAt": stamp()}, None, None

    def end(self, code: int, reason: str = "", message: str = "") -> None:
        began = (self.running or {}).get("startedAt")
        self.terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": began,
            "finishedAt": stamp(),
            "containerID": f"emulated://{self.mark}",
            **({"message": message} if message else {}),
        }
        self.waiting = self.running = None

    def succeeded(self) -> bool:
        return self.terminated is not None and self.terminated["exitCode"] == 0

    def shown(self) -> Body:
        state = {"waiting": self.waiting, "running": self.running, "terminated": self.terminated}
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "" if self.waiting and not self.last else f"emulated://{self.image}",
            "containerID": f"emulated://{self.mark}" if self.mark else "",
            "restartCount": self.restarts,
            "ready": bool(self.running) or (self.role == "init" and self.succeeded()),
            "started": bool(self.running),
            "state": {name: value for name, value in state.items() if value is not None},
            "lastState": {"terminated": self.last} if self.last else {},
        }


def conditioned(conditions: Sequence[Body], kind: str, status: bool | str, reason: str = "", message: str = "") -> list[Body]:
    """The conditions with this one in them; its time is that of its last transition."""
    told = status if isinstance(status, str) else str(status)
    old = next((one for one in conditions if one["type"] == kind), None)
    changed = stamp() if old is None or old["status"] != told else old.get("lastTransitionTime")
    new: Body = {"type": kind, "status": told, "lastProbeTime": None, "lastTransitionTime": changed}
    new.update({key: value for key, value in (("reason", reason), ("message", message)) if value})
    return [new if one is old else one for one in conditions] if old else [*conditions, new]


def pod_status(pod: Body, states: Sequence[ContainerState], address: str, host: str, over: Body | None = None) -> Body:
    """The whole status. What others wrote there (conditions, a nomination) stays; `over` is what an eviction says."""
    status: Body = clone(pod.get("status") or {})
    inits = [one for one in states if one.role == "init"]
    mains = [one for one in states if one.role == "main"]
    phase = (over or {}).get("phase") or _phase(pod, states)
    status.update(phase=phase, hostIP=host, hostIPs=[{"ip": host}])
    if address:
        status.update(podIP=address, podIPs=[{"ip": address}])
    status.setdefault("startTime", stamp())
    status["containerStatuses"] = [one.shown() for one in mains]
    if first := [one.shown() for one in states if one.role != "main"]:
        status["initContainerStatuses"] = first
    conditions = conditioned(status.get("conditions") or [], "PodScheduled", True)
    ended = phase in {"Succeeded", "Failed"}
    done = all(one.succeeded() for one in inits) or any(one.running or one.terminated for one in mains)
    why = "PodCompleted" if ended and phase == "Succeeded" else "PodFailed" if ended else ""
    conditions = conditioned(conditions, "PodReadyToStartContainers", bool(address) and not ended)
    conditions = conditioned(conditions, "Initialized", done, "" if done else "ContainersNotInitialized")
    ready = not ended and bool(mains) and all(one.running for one in mains)
    unready = "" if ready else why or "ContainersNotReady"
    for kind in ("ContainersReady", "Ready"):
        conditions = conditioned(conditions, kind, ready, unready)
    status["conditions"] = conditions
    status.update({key: value for key, value in (over or {}).items() if key != "conditions"})
    for one in (over or {}).get("conditions") or []:
        status["conditions"] = conditioned(
            status["conditions"], one["type"], one["status"], one["reason"], one.get("message", "")
        )
    return status


def _phase(pod: Body, states: Sequence[ContainerState]) -> str:
    """By the kubelet's own rules: nothing that waits for its first start runs, and an end is the end of all of them."""
    policy = pod["spec"]["restartPolicy"]
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return str(pod["status"]["phase"])
    inits = [one for one in states if one.role == "init"]
    if any(one.terminated and not one.succeeded() for one in inits) and policy == "Never":
        return "Failed"
    if not all(one.succeeded() for one in inits):
        return "Pending"
    mains = [one for one in states if one.role == "main"]
    if any(one.waiting and not one.last for one in mains):
        return "Pending"
    if any(one.running for one in states) or policy == "Always" or any(one.waiting for one in mains):
        return "Running"
    if all(one.succeeded() for one in mains):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"
