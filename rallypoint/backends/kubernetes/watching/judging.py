"""From what is known of a pod to what the supervisor sees of a node. Pure; whoever calls measures how long something lasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.backends.kubernetes.labels import PodLabels
from rallypoint.backends.kubernetes.watching.views import Container, HostView, PodView, Running, Terminated, Waiting
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.wire.incident import FaultKind

__all__ = ["PATIENCE", "Around", "cannot_start", "left", "mounts", "node_seen", "out_of_reach", "taken_by_queue"]

#: Seconds after which what keeps a container from starting counts as its end. A registry that stumbles gets a second chance;
#: a name that can be no image's does not.
PATIENCE = 30.0

_AT_ONCE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_SOON = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "RegistryUnavailable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
        "PostStartHookError",
        "CrashLoopBackOff",
    }
)
#: A container in these states waits for its volumes or its network; only an event says for which.
_MOUNTS = frozenset({"", "ContainerCreating", "PodInitializing"})

#: By whom and why a pod is ended or was, in the words of pods' conditions and of `status.reason`.
_KINDS: Mapping[str, FaultKind] = {
    "PreemptionByScheduler": FaultKind.PREEMPTED,
    "PreemptionByKubeScheduler": FaultKind.PREEMPTED,
    "Preempting": FaultKind.PREEMPTED,
    "TerminationTarget": FaultKind.PREEMPTED,
    "Evicted": FaultKind.EVICTED,
    "TerminationByKubelet": FaultKind.EVICTED,
    "NodeShutdown": FaultKind.EVICTED,
    "Terminated": FaultKind.EVICTED,
    "Shutdown": FaultKind.EVICTED,
    "UnexpectedAdmissionError": FaultKind.EVICTED,
    "NodeAffinity": FaultKind.EVICTED,
    "EvictionByEvictionAPI": FaultKind.FLAGGED,
    "DeletionByTaintManager": FaultKind.NODE_LOST,
    "DeletionByPodGC": FaultKind.NODE_LOST,
    "DeletionByNodeLifecycle": FaultKind.NODE_LOST,
    "NodeLost": FaultKind.NODE_LOST,
}

_NO_HOST = HostView(name="", uid="", version="", ready=True)


@dataclass(frozen=True, kw_only=True)
class Around:
    """What is known of a pod that does not stand in it.

    Attributes:
        host: the machine it is on, where machines may be looked at.
        stuck: seconds for which it cannot start.
        unreachable: seconds for which nobody has heard of its machine, or it should have been gone.
        lost: why it counts as lost although the object is there; "" while it does not.
        group: label by which machines belong together; "" is none.
        returned: machines that it keeps off and that are usable again.
        fence: seconds after which what is out of reach has stopped its workers by itself.
        trouble: what an event says of its volumes.
        log_tail: its last words.
        gone: the object was deleted; this is how it was seen last.
        kept: an ended one stays for its log's sake.
        finished: the job is over; whoever is beside its trainer is to end, too.
    """

    host: HostView = _NO_HOST
    stuck: float = 0.0
    unreachable: float = 0.0
    lost: str = ""
    group: str = ""
    returned: tuple[str, ...] = ()
    fence: float = 600.0
    trouble: str = ""
    log_tail: tuple[str, ...] = ()
    gone: bool = False
    kept: bool = True
    finished: bool = False


def node_seen(pod: PodView, around: Around) -> NodeSeen:
    """Return what the supervisor sees of a pod. One that only a finalizer keeps is gone for all that it holds."""
    if pod.only_kept and not around.gone:
        around = dataclasses.replace(around, gone=True)
    state, kind, reason = _state(pod, around)
    ended = state in (NodeState.SUCCEEDED, NodeState.FAILED, NodeState.LOST)
    trainer = pod.trainer
    code = trainer.state.code if trainer is not None and isinstance(trainer.state, Terminated) else None
    codes = tuple(c.state.code for c in pod.containers if isinstance(c.state, Terminated)) if ended else ()
    where = pod.labels
    return NodeSeen(
        attempt=where.attempt,
        node=where.node,
        incarnation=where.incarnation,
        state=state,
        present=not around.gone and not (pod.over and around.kept and not pod.deleting),
        host=pod.host,
        exit_code=code if ended else None,
        exit_codes=codes,
        reason=reason,
        kind=kind,
        log_tail=around.log_tail if ended else (),
        deleting=pod.deleting and not around.gone,
        gated=pod.gated,
        unschedulable=bool(pod.unschedulable),
        outdated=_outdated(pod, around),
        group=around.host.labels.get(around.group, ""),
        unseen=state is NodeState.LOST and bool(around.lost) and not around.gone and not pod.over,
        flagged=f"{pod.host} has {around.host.bad}" if around.host.bad and pod.devices else "",
    )


def _outdated(pod: PodView, around: Around) -> str:
    """Return why an unscheduled pod is created anew: what it must keep off cannot be changed in a pod."""
    if not pod.unschedulable or pod.host or not around.returned:
        return ""
    names = ", ".join(around.returned)
    return f"is created anew: it keeps off {names}, which can be used again, and no other machine has room"


def left(labels: PodLabels, reason: str) -> NodeSeen:
    """Return what is seen of a pod of which nothing is known but that it is gone."""
    return NodeSeen(
        attempt=labels.attempt,
        node=labels.node,
        incarnation=labels.incarnation,
        state=NodeState.LOST,
        present=False,
        kind=FaultKind.DELETED,
        reason=reason,
    )


def cannot_start(pod: PodView) -> str:
    """Return what keeps a container of the pod from starting that will not go away by waiting, in words; "" for nothing."""
    for container in pod.containers:
        if isinstance(container.state, Waiting) and container.state.reason in _AT_ONCE | _SOON:
            message = container.state.message.strip()
            said = container.state.reason + (f": {message}" if message else "")
            return f"container {container.name} cannot start: {said}"
    return ""


def mounts(pod: PodView) -> bool:
    """Return whether the pod has a machine, and waits there for what only an event names: volumes, secrets, the network."""
    if not pod.host or pod.phase != "Pending" or pod.deleting:
        return False
    waiting = [c.state.reason for c in pod.containers if isinstance(c.state, Waiting)]
    return not any(isinstance(c.state, Running) for c in pod.containers) and all(reason in _MOUNTS for reason in waiting)


def taken_by_queue(pod: PodView) -> bool:
    """Return whether a queue takes the pod's quota away."""
    return pod.target == "TerminationTarget"


def out_of_reach(pod: PodView, host: HostView) -> bool:
    """Return whether nobody has heard of the pod's machine lately."""
    return bool(pod.host) and not pod.over and (host.ready is None or pod.phase == "Unknown" or pod.reason == "NodeLost")


# --- The state -------------------------------------------------------------------------------------------------------------

_State = tuple[NodeState, FaultKind | None, str]


def _state(pod: PodView, around: Around) -> _State:
    trainer = pod.trainer
    ended = trainer.state if trainer is not None and isinstance(trainer.state, Terminated) else None
    if pod.over or (ended is not None and pod.labels.node >= 0 and not around.finished):
        return _ended(pod, ended, around)
    if around.gone:
        kind = _KINDS.get(pod.target, FaultKind.DELETED)
        return NodeState.LOST, kind, _because(pod) or "its pod was deleted by another client"
    if around.lost:
        return NodeState.LOST, FaultKind.NODE_LOST, around.lost
    if around.unreachable > 0:
        return _unreachable(pod, around)
    # A coordinator that ended badly is started again in its pod, under the same term.
    if pod.deleting or (ended is not None and pod.labels.node >= 0):
        return NodeState.ENDING, None, _because(pod)
    if (bad := _bad_pending(pod, around)) is not None:
        return bad
    if trainer is not None and isinstance(trainer.state, Running):
        return NodeState.RUNNING, None, ""
    return NodeState.STARTING, None, pod.unschedulable or ("the pod waits for quota" if pod.gated else _waits(trainer))


def _ended(pod: PodView, ended: Terminated | None, around: Around) -> _State:
    well = pod.phase == "Succeeded" or (pod.phase != "Failed" and ended is not None and ended.code == 0)
    if well:
        return NodeState.SUCCEEDED, None, ""
    kind = _kind(pod, ended, around)
    if ended is None and not any(isinstance(c.state, Terminated) for c in pod.containers):
        return NodeState.LOST, kind or FaultKind.NODE_LOST, _because(pod) or "its pod failed with unknown exit status"
    said = _because(pod) or _init_failure(pod) or _words(ended)
    return NodeState.FAILED, kind, said


def _kind(pod: PodView, ended: Terminated | None, around: Around) -> FaultKind | None:
    kind = _KINDS.get(pod.reason) or _KINDS.get(pod.target)
    if kind is not None:
        return kind
    if pod.reason.startswith("OutOf"):
        return FaultKind.EVICTED
    if any(isinstance(c.state, Terminated) and c.state.reason == "OOMKilled" for c in pod.containers):
        return FaultKind.OOM
    if ended is not None and ended.reason in ("ContainerCannotRun", "StartError"):
        return FaultKind.START_FAILED
    if _init_failure(pod):
        return FaultKind.START_FAILED
    # Whoever deletes a pod makes it end by a signal; that is no fault of what ran in it.
    deleted = around.gone or pod.deleting
    return FaultKind.DELETED if deleted and ended is not None and ended.code in (137, 143) else None


def _init_failure(pod: PodView) -> str:
    for container in pod.containers:
        if container.init and isinstance(container.state, Terminated) and container.state.code != 0:
            return f"init container {container.name} {_words(container.state)}"
    return ""


def _words(ended: Terminated | None) -> str:
    if ended is None:
        return ""
    message = ended.message.strip().splitlines()[-1] if ended.message.strip() else ""
    reason = "" if ended.reason in ("Error", "Completed") else ended.reason
    return ": ".join(part for part in (reason, message) if part)


def _because(pod: PodView) -> str:
    parts = (pod.reason, pod.message) if pod.reason else (pod.target, pod.target_message)
    return ": ".join(part for part in parts if part)


def _unreachable(pod: PodView, around: Around) -> _State:
    """Its processes may live on: only when they have stopped by themselves for want of contact does another take its place."""
    said = f"no report from its host {pod.host} for {around.unreachable:.0f} s"
    if pod.deleting and around.unreachable >= around.fence:
        kind = _KINDS.get(pod.target, FaultKind.NODE_LOST)
        return NodeState.LOST, kind, f"{said}; by now, the agent has stopped its workers"
    return NodeState.UNKNOWN, None, said


def _bad_pending(pod: PodView, around: Around) -> _State | None:
    why = cannot_start(pod)
    at_once = any(isinstance(c.state, Waiting) and c.state.reason in _AT_ONCE for c in pod.containers)
    if why and (at_once or around.stuck >= PATIENCE):
        return NodeState.FAILED, FaultKind.START_FAILED, why
    if around.trouble and around.stuck >= PATIENCE:
        return NodeState.FAILED, FaultKind.START_FAILED, around.trouble
    return None


def _waits(trainer: Container | None) -> str:
    if trainer is None or not isinstance(trainer.state, Waiting):
        return ""
    return ": ".join(part for part in dataclasses.astuple(trainer.state) if part)
