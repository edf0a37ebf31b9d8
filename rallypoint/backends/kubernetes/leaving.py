"""Leaving a job to a supervisor in a pod of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.contract import BackendError, Blueprint, JobNotFoundError, SubmitError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.errors import ApiError, never_fits, submit_error
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER
from rallypoint.backends.kubernetes.manifests.supervisor import SUPERVISOR, supervisor_pod
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster, joined

__all__ = ["SupervisorPods", "trouble_of"]

#: How long an earlier supervisor of the job may take to be gone, in seconds; looked at so often.
_GONE, _LOOK = 90.0, 0.5

#: Seconds between two looks at a supervisor that goes on.
_AGAIN = 2.0

#: Lines and bytes of a supervisor's last words.
_LINES, _BYTES = 5, 16 << 10

#: A container that waits for such a reason does not start by itself.
_STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


class SupervisorPods:
    """Supervisors in pods of one namespace.

    Args:
        access: which cluster, and which namespace of it.
        image: what they run; "" is each job's own image.
        account: their service account; "" is `rallypoint-supervisor`.
    """

    def __init__(self, access: Access, *, image: str = "", account: str = "") -> None:
        self._access, self._image, self._account = access, image, account
        #: Which pod stands by for which.
        self._standby: dict[str, str] = {}

    async def check(self, blueprint: Blueprint) -> None:
        """Raise `SubmitError` where the API server would take no such pod for this job; creates nothing."""
        ref = JobRef(name=blueprint.plan.name, uid=PLACEHOLDER, namespace=self._access.namespace)
        manifest = supervisor_pod(ref, spec=blueprint.job, plan=blueprint.plan, image=self._image, account=self._account)
        async with joined(self._access) as cluster:
            try:
                await cluster.create("pods", manifest, dry_run=True)
            except ApiError as error:
                if not _is_of_this_moment(error):
                    raise self._refused(error) from error

    async def leave(self, name: str) -> str:
        """See to it that a pod supervises the job, and return the pod's name.

        One that is there already goes on; one that has ended is replaced. Raises `JobNotFoundError`, and `SubmitError` where
        there can be none.
        """
        async with joined(self._access) as cluster:
            store = Store(cluster)
            stored = await store.load(name, now=True)
            if stored is None:
                raise JobNotFoundError(f"job {name!r} not found in namespace {self._access.namespace}")
            spec, plan, ref = await store.spec(stored.record)
            manifest = supervisor_pod(ref, spec=spec, plan=plan, image=self._image, account=self._account)
            try:
                await _make(cluster, manifest)
            except ApiError as error:
                raise self._refused(error) from error
        pod = names.supervisor_pod(ref)
        self._standby[pod] = names.standby_pod(ref)
        return pod

    async def lost(self, pod: str) -> str:
        """Return when a supervisor has ended or cannot begin, with its last words; a silent server says nothing of that."""
        while True:
            with contextlib.suppress(BackendError):
                async with joined(self._access) as cluster:
                    return await _lost(cluster, pod, self._standby.get(pod, ""))
            await asyncio.sleep(_AGAIN)

    def _refused(self, error: ApiError) -> SubmitError:
        account = self._account or names.SUPERVISOR_ROLE
        if "serviceaccount" in error.said and "not found" in error.said:
            return SubmitError(
                f"supervisor pod: service account {account} not found in namespace {self._access.namespace}; create "
                f"it (rallypoint manifests rbac --namespace {self._access.namespace} | kubectl apply -f -), or "
                "supervise from this machine (--supervise here, or process)"
            )
        return submit_error(error, namespace=self._access.namespace, what="supervisor pod")


async def _lost(cluster: Cluster, pod: str, standby: str) -> str:
    while True:
        trouble = trouble_of(await cluster.get("pods", pod))
        if trouble and (not standby or trouble_of(await cluster.get("pods", standby))):
            return f"{trouble}{await _last_words(cluster, pod)}"
        await asyncio.sleep(_AGAIN)


async def _make(cluster: Cluster, manifest: Mapping[str, Any]) -> None:
    name, loop = manifest["metadata"]["name"], asyncio.get_running_loop()
    end = loop.time() + _GONE
    while loop.time() < end:
        try:
            await cluster.create("pods", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            return
        found = await cluster.get("pods", name)
        if found is not None and not _is_over(found):
            return
        if found is not None and not found["metadata"].get("deletionTimestamp"):
            await cluster.delete("pods", name, uid=found["metadata"]["uid"])
        await asyncio.sleep(_LOOK)
    raise BackendError(f"the pod {name} of the previous supervisor still exists after {_GONE:g} s")


def _is_over(pod: Mapping[str, Any]) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or bool(pod["metadata"].get("deletionTimestamp"))


def trouble_of(pod: Mapping[str, Any] | None) -> str:
    """Return why a supervisor's pod supervises nothing (any more), "" while it does or may yet. Pure."""
    if pod is None:
        return "was deleted"
    if _is_over(pod):
        status = pod.get("status") or {}
        return f"has ended ({' '.join(str(status[key]) for key in ('phase', 'reason') if status.get(key))})"
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return f"does not start ({waiting['reason']}: {waiting.get('message') or 'no message'})"
    return ""


async def _last_words(cluster: Cluster, pod: str) -> str:
    query = {"container": SUPERVISOR, "tailLines": str(_LINES), "limitBytes": str(_BYTES)}
    try:
        said = await cluster.api.request("GET", cluster.path("pods", pod, "log"), query=query)
    except BackendError:
        return ""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines)


def _is_of_this_moment(error: ApiError) -> bool:
    """Return whether a refusal says nothing against a pod that is created later."""
    if "exceeded quota" in error.said:
        return not never_fits(error.said)
    return error.transient
