"""The clocks after which silent pods count as lost with their machines, for `explain`; `machines.py` acts on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rallypoint.backends.contract import BackendError, PlaceClock
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.machines import OVERDUE, Machines, heard, suspects
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.status import JobStatus

__all__ = ["clocks_of", "loss_clocks", "silent_pods"]

#: Seconds without a renewal from which on the machine of a pod that is being ended is silent: kubelets renew every 10 seconds.
_RENEWAL = 10.5


async def loss_clocks(
    machines: Machines, record: JobRecord, pods: Iterable[PodView], status: JobStatus | None, *, silent: bool
) -> tuple[PlaceClock, ...]:
    """Return the `lost-machine` clocks that run; none where the Leases of machines cannot be read.

    Args:
        machines: read the Leases.
        record: of the job.
        pods: of the job.
        status: the coordinator's last word.
        silent: the coordinator did not answer when it was asked.
    """
    suspicious = silent_pods(record, tuple(pods), status, silent=silent)
    try:
        ages = {pod.host: await machines.age(pod.host) for pod in suspicious}
    except BackendError:
        return ()
    return tuple(clocks_of(record, suspicious, ages))


def silent_pods(record: JobRecord, pods: tuple[PodView, ...], status: JobStatus | None, *, silent: bool) -> tuple[PodView, ...]:
    """Return the pods of which nothing is heard, or that are being ended. Pure."""
    if record.phase not in (Phase.RESUMING, Phase.RUNNING):
        return tuple(pod for pod in pods if pod.host and not pod.over and not record.released)
    coordinators = (pod for pod in pods if pod.labels.part is Part.COORDINATOR and pod.labels.incarnation == record.term)
    coordinator = next((pod for pod in coordinators if pod.host and not pod.over), None)
    if coordinator is None:
        return ()
    if silent:
        return coordinator, *suspects(record, pods, None, frozenset({coordinator.host}))
    current = status is not None and (status.fence.attempt, status.fence.term) == (record.attempt, record.term)
    return suspects(record, pods, heard(status), frozenset()) if current else ()


def clocks_of(record: JobRecord, pods: Iterable[PodView], ages: dict[str, float | None]) -> Iterator[PlaceClock]:
    """Yield the clock of each silent pod, by the age of its machine's Lease in seconds. Pure."""
    ending = record.phase not in (Phase.RESUMING, Phase.RUNNING)
    for pod in pods:
        age = ages.get(pod.host)
        if age is None or (ending and age < _RENEWAL):
            continue
        unless = f"unless machine {pod.host} renews its Lease or the pod answers"
        if ending:
            then = f"pod {pod.name} is deleted with force"
        elif pod.labels.part is Part.COORDINATOR:
            then = "the coordinator is lost and the next one starts"
        else:
            then = f"node {pod.labels.node} is lost and is replaced"
        yield PlaceClock(clock="lost-machine", within=max(0.0, OVERDUE - age), then=f"{then}, {unless}")
