"""Asking a job's coordinator in its pod, through the API server: it needs no address that we can reach, and no name."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.identity import require_status
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.errors import ApiError, UnreachableError
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.manifests.objects import SECRET_KEY
from rallypoint.backends.kubernetes.manifests.parts import coordinator_port
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.wire import codec
from rallypoint.wire.bounds import excess
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import HEALTH_PATH, ROSTER_PATH, STATUS_PATH, SUPERVISOR_HEADER
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import AGENT_PORT
from rallypoint.wire.roster import Roster
from rallypoint.wire.status import JobStatus

__all__ = ["Coordinators"]

_TIMEOUT = 5.0

#: Seconds that a coordinator has to say that it is there.
_ANSWER = 3.0

#: Bytes of a status that is read in a thread; a shorter one takes a few milliseconds.
_LONG = 1 << 15


class Coordinators:
    """The coordinators of a namespace's jobs. Tokens are read once per attempt, and kept nowhere but here."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tokens: dict[str, tuple[int, str]] = {}

    async def status(self, job: JobRef, plan: Plan, pod: PodView, *, sign: str = "") -> JobStatus:
        """Return what the coordinator says now; `sign` is the caller's sign of life, if it supervises.

        Raises `BackendError`.
        """
        data = await self._ask("GET", job, plan, pod, STATUS_PATH, sign=sign)
        if limit := excess(data):
            raise BackendError(f"pod {pod.name}: the response to {STATUS_PATH} has more than {limit}, the largest allowed size")
        try:
            # In a thread where it is long: the event loop may have other jobs and other triggers.
            told = codec.loads(JobStatus, data) if len(data) < _LONG else await asyncio.to_thread(codec.loads, JobStatus, data)
        except codec.WireError as error:
            raise BackendError(f"pod {pod.name}: {STATUS_PATH}: {error}") from error
        require_status(told, name=job.name, where=f"pod {pod.name}: {STATUS_PATH}", kind=BackendError, uid=job.uid)
        return told

    async def answers(self, plan: Plan, pod: PodView) -> bool:
        """Return whether anything answers where the coordinator or the agent in `pod` listens; the API server asks the pod.

        Raises `BackendError` where the API server itself does not answer.
        """
        path = self._cluster.path("pods", _port_of(pod, plan), f"proxy{HEALTH_PATH}")
        try:
            await self._cluster.api.request("GET", path, timeout=_ANSWER)
        except ApiError as error:
            # The API server answers for a pod that it does not reach: 500 to 504. Whatever else is said comes from the pod.
            return not 500 <= error.status < 600
        except UnreachableError:
            await self._cluster.time()  # the API server was not too slow; the pod was
            return False
        return True

    async def tell(self, job: JobRef, plan: Plan, pod: PodView, roster: Roster, *, sign: str) -> None:
        """Tell the coordinator where the agents are. Raises `BackendError`."""
        await self._ask("POST", job, plan, pod, ROSTER_PATH, body=json.loads(codec.dumps(roster)), sign=sign)

    async def _ask(
        self, method: str, job: JobRef, plan: Plan, pod: PodView, path: str, *, body: Any = None, sign: str = ""
    ) -> bytes:
        headers = {TOKEN_HEADER: await self._token(job, pod.labels.attempt), **({SUPERVISOR_HEADER: sign} if sign else {})}
        proxy = self._cluster.path("pods", _port_of(pod, plan), f"proxy{path}")
        return await self._cluster.api.request(method, proxy, body=body, headers=headers, timeout=_TIMEOUT)

    async def _token(self, job: JobRef, attempt: int) -> str:
        known = self._tokens.get(job.uid)
        if known is None or known[0] != attempt:
            found = await self._cluster.get("secrets", names.attempt_secret(job, attempt))
            if found is None:
                raise BackendError(f"job {job.name}: the Secret of attempt {attempt} was deleted")
            token = base64.b64decode((found.get("data") or {}).get(SECRET_KEY, "")).decode().strip()
            known = self._tokens[job.uid] = (attempt, token)
        return known[1]

    def forget(self, uid: str) -> None:
        """Forget a job's token."""
        self._tokens.pop(uid, None)


def _port_of(pod: PodView, plan: Plan) -> str:
    """Return the port of a coordinator or an agent as the API server's proxy names it; that has no certificate of the job."""
    port = coordinator_port(plan) if pod.labels.part is Part.COORDINATOR else AGENT_PORT
    return f"{'https:' if plan.tls else ''}{pod.name}:{port}"
