"""What the events say of a pod whose volumes, secrets or network do not come: the pod itself only says that it waits."""

from __future__ import annotations

import asyncio
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.client import parse
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView

__all__ = ["Troubles", "trouble_in"]

#: Events are asked for once a pod has waited so long, and again after so long, in seconds.
_FIRST, _AGAIN = 10.0, 15.0

_REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})


class Troubles:
    """What is known of each pod that waits."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, tuple[float, str]] = {}

    def of(self, pod: PodView) -> str:
        """Return what is known, "" for nothing."""
        return self._known.get(pod.uid, (0.0, ""))[1]

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        self._known.pop(uid, None)

    async def look(self, pod: PodView, waits: float) -> None:
        """Ask for the pod's events if it has waited, `waits` seconds by now, long enough; who may not read them knows none."""
        now = asyncio.get_running_loop().time()
        asked, _ = self._known.get(pod.uid, (float("-inf"), ""))
        if waits < _FIRST or now - asked < _AGAIN:
            return
        path = self._cluster.path("events")
        query = {"fieldSelector": f"involvedObject.uid={pod.uid}", "limit": "100"}
        try:
            found = parse(await self._cluster.api.request("GET", path, query=query), f"GET {path}")
        except BackendError:
            found = {}
        self._known[pod.uid] = (now, trouble_in(found.get("items") or ()))


def trouble_in(events: Any) -> str:
    """Return the last event that says why a pod's volumes do not come, in words; "" where none does."""
    bad = [e for e in events if e.get("type") != "Normal" and e.get("reason") in _REASONS]
    if not bad:
        return ""
    last = max(bad, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    return f"{last['reason']}: {str(last.get('message') or '').strip()}"
