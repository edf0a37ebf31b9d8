"""Looking at a job that stands in a wrapper, and doing what is to be done about it."""

from __future__ import annotations

import json
import logging
from typing import Any

from rallypoint.backends.contract import ActionError, BackendError
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.client import MERGE_PATCH, parse
from rallypoint.backends.kubernetes.errors import ApiError, action_error
from rallypoint.backends.kubernetes.labels import END, UID
from rallypoint.backends.kubernetes.leftovers import bring_up_to_date
from rallypoint.backends.kubernetes.manifests.network_policy import network_policy_of
from rallypoint.backends.kubernetes.manifests.objects import MANIFEST_KEY
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.logs import read_tail, tail_bytes
from rallypoint.backends.kubernetes.watching.views import PodView, Terminated
from rallypoint.backends.kubernetes.watching.watch import Target, pages
from rallypoint.backends.kubernetes.wrapped import rays, seen
from rallypoint.backends.kubernetes.wrapped.kinds import RAYS, WRAPPING, has_secret
from rallypoint.backends.kubernetes.wrapped.manifest import marked
from rallypoint.backends.kubernetes.wrapped.objects import Wrapper, Wrappers, wrappers_of
from rallypoint.backends.kubernetes.wrapped.seen import SUSPENDED
from rallypoint.supervision.actions import (
    Action,
    CreateComponents,
    EndServers,
    Purge,
    RemoveComponents,
    RemoveNode,
    SuspendComponents,
)
from rallypoint.supervision.observation import Components, NodeSeen, Observation
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Kind, Plan

__all__ = ["Wrapped", "activate", "sweep_wrappers"]

_GROUP = "kueue.x-k8s.io"

#: Label of a Workload: the uid of the object that it stands for.
_OF = f"{_GROUP}/job-uid"


async def activate(cluster: Cluster, uid: str, *, active: bool) -> bool:
    """Let the Workloads of the object `uid` be admitted, or not; return whether there is one.

    A cluster without Kueue has none. Raises `ApiError`, for one where we may not look, too.
    """
    version = await _version(cluster)
    if not version:
        return False
    root = f"/apis/{version}/namespaces/{cluster.namespace}/workloads"
    found = False
    async for page in pages(cluster.api, Target(path=root, selector=f"{_OF}={uid}")):
        for workload in page.items:
            found = True
            # A missing value means active.
            if (workload.get("spec") or {}).get("active", True) is not active:
                path = f"{root}/{workload['metadata']['name']}"
                await cluster.api.request("PATCH", path, body={"spec": {"active": active}}, kind=MERGE_PATCH)
    return found


async def _version(cluster: Cluster) -> str:
    """Return the version in which the server has Kueue's objects (`kueue.x-k8s.io/v1beta1`), "" for none."""
    path = f"/apis/{_GROUP}"
    try:
        told = await parse(await cluster.api.request("GET", path), f"GET {path}")
    except ApiError as error:
        if error.status == 404:
            return ""
        raise
    return str((told.get("preferredVersion") or {}).get("groupVersion") or "")


log = logging.getLogger(__name__)


class Wrapped:
    """What one backend does for jobs of the kinds that other controllers run."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster, self._store = cluster, store
        self._secrets = AttemptSecrets(cluster)
        self._tails: dict[str, dict[str, tuple[str, ...]]] = {}

    # --- Looking

    async def observe(self, record: JobRecord, plan: Plan, *, now: bool = False) -> Observation:
        """Return what is there; with `now` nothing is taken from memory.

        The wrapper is looked at before its pods: so they are of the attempt that it speaks of, or of a later one.
        """
        wrapper = await self._wrapper(record, plan, now=now)
        pods = await self._pods(record, now=now)
        tails = await self._last_words(record, plan, pods)
        hosts = {host.name: host for host in self._cluster.cache.hosts}
        nodes = seen.nodes(record, pods, hosts, tails)
        if plan.kind is Kind.APPWRAPPER:
            told, condition = (None, "") if wrapper is None else (wrapper.told, wrapper.condition)
            return Observation(nodes=nodes, told=told, controller=condition)
        if plan.kind in RAYS:
            nodes = _driver(record, wrapper, nodes)
        # What has succeeded stays for its logs and holds nothing, as the ended pods of other kinds.
        over = record.phase is Phase.SUCCEEDED and not record.deletion
        rests = over and not any(node.present for node in nodes)
        if wrapper is None or rests:
            return Observation(nodes=nodes, components=Components(deployed=0))
        if wrapper.suspended and not nodes:
            nodes = seen.waiting(record, plan.max_nodes)
        return Observation(nodes=nodes, components=wrapper.components, controller=wrapper.condition)

    def _wrappers(self, plan: Plan) -> Wrappers:
        return wrappers_of(self._cluster, plan.kind)

    async def _wrapper(self, record: JobRecord, plan: Plan, *, now: bool) -> Wrapper | None:
        found = await self._wrappers(plan).get(plan.name, now=now)
        return found if found is not None and found.job_uid == record.uid else None

    async def attempt(self, record: JobRecord, plan: Plan) -> int:
        """Return the attempt whose Secret the wrapper's pods have, 0 where there is no wrapper."""
        wrapper = await self._wrapper(record, plan, now=False)
        return 0 if wrapper is None else wrapper.attempt

    async def _pods(self, record: JobRecord, *, now: bool) -> tuple[PodView, ...]:
        if self._cluster.fresh and not now:
            return self._cluster.cache.pods_of(record.uid)
        return await self._cluster.pods_of(self._store.ref(record))

    async def _last_words(self, record: JobRecord, plan: Plan, pods: tuple[PodView, ...]) -> dict[str, tuple[str, ...]]:
        """Read the log of each pod that failed, once and while it is there: it goes with the reset."""
        known = self._tails.setdefault(record.uid, {})
        failed = [pod for pod in pods if _has_failed(pod)]
        for pod in failed:
            if pod.uid not in known:
                try:
                    known[pod.uid] = await read_tail(self._cluster, pod, plan.logs.log_tail, tail_bytes(len(failed)))
                except BackendError as error:
                    log.info("pod=%s: the supervisor cannot read the last log lines of the failed pod: %s", pod.name, error)
                    known[pod.uid] = ()
        here = {pod.uid for pod in pods}
        for uid in [uid for uid in known if uid not in here]:
            del known[uid]
        if not known:
            del self._tails[record.uid]
        return known

    # --- Doing

    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        """Do one action; see `Backend.act`."""
        if isinstance(action, Purge):
            await self._store.purge(record)
        elif isinstance(action, CreateComponents):
            await self._create(record, plan, action.attempt)
        elif isinstance(action, RemoveNode):
            await self._remove_pod(record, action)
        elif isinstance(action, EndServers):
            await self._end_servers(record, action)
        elif isinstance(action, (RemoveComponents, SuspendComponents)):
            await self._change(record, plan, action)
        else:
            raise ActionError(f"action {type(action).__name__} is not possible for a job of kind {plan.kind.value}", fatal=True)

    async def _create(self, record: JobRecord, plan: Plan, attempt: int) -> None:
        try:
            # Read now: what was ended, or is of an attempt that is over, must not come back.
            view = await self._store.view(record.name, now=True)
            stored = await self._store.load(record.name)
        except BackendError as error:
            raise ActionError(str(error)) from error
        if view is None or view.job_uid != record.uid or stored is None:
            raise ActionError(f"job {record.name} was deleted")
        if not _wants(stored.record, plan, attempt):
            raise ActionError(f"job {record.name}: cannot create objects for attempt {attempt}, because this attempt has ended")
        ref = self._store.ref(record, view.uid)
        given = json.loads(view.data[MANIFEST_KEY])
        manifest = marked(given, ref, attempt=attempt, suspend=record.suspend, secret=has_secret(plan))
        what = "the job's Secret"
        try:
            if plan.network_policy:
                await self._let_in(ref, plan)
            if has_secret(plan):
                await self._secrets.ensure(ref, plan, attempt)
            what = f"the {WRAPPING[plan.kind].kind}"
            await self._ensure(record, plan, manifest)
        except ApiError as error:
            raise action_error(error, what=what) from error

    async def _let_in(self, ref: JobRef, plan: Plan) -> None:
        """Create the job's NetworkPolicy, or give the one that exists the rules of the plan."""
        policy = network_policy_of(ref, plan)
        try:
            await self._cluster.create("networkpolicies", policy)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._cluster.get("networkpolicies", policy["metadata"]["name"])
            if found is None or (found["metadata"].get("labels") or {}).get(UID) != ref.uid:
                raise
            await bring_up_to_date(self._cluster, "networkpolicies", policy, found)

    async def _ensure(self, record: JobRecord, plan: Plan, manifest: dict[str, Any]) -> None:
        wrappers = self._wrappers(plan)
        try:
            await wrappers.create(manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await wrappers.get(plan.name, now=True)
            if found is not None and found.job_uid != record.uid:
                kind = WRAPPING[plan.kind].kind
                raise ActionError(
                    f"{kind} {plan.name} already exists and does not belong to this job; delete the existing object", fatal=True
                ) from error

    async def _change(self, record: JobRecord, plan: Plan, action: RemoveComponents | SuspendComponents) -> None:
        wrappers = self._wrappers(plan)
        wrapper = await self._wrapper(record, plan, now=True)
        if wrapper is None:
            return
        try:
            if isinstance(action, RemoveComponents):
                # Before the wrapper: a pod that is created late cannot start.
                await self._secrets.delete(self._store.ref(record), wrapper.attempt)
                await wrappers.delete(wrapper, force=action.force)
            else:
                mark = {"metadata": {"annotations": {SUSPENDED: "true" if action.suspend else None}}}
                # The mark comes last: by it the wish counts as carried out.
                queued = await self._queued(wrapper, active=not action.suspend)
                await wrappers.patch(plan.name, mark if queued else {**mark, "spec": {"suspend": action.suspend}})
        except ApiError as error:
            if error.status != 404:
                raise ActionError(f"{WRAPPING[plan.kind].kind} {plan.name}: {error.said or error}") from error

    async def _queued(self, wrapper: Wrapper, *, active: bool) -> bool:
        """Tell the queue that a wrapper stands in whether it may run; return whether it stands in one."""
        try:
            return await activate(self._cluster, wrapper.uid, active=active)
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning(
                "AppWrapper=%s: the supervisor has no permission to change the Kueue Workload of this AppWrapper (%s), so "
                "Kueue may suspend or resume the job again",
                wrapper.name,
                error,
            )
            return False

    async def _remove_pod(self, record: JobRecord, action: RemoveNode) -> None:
        for pod in await self._pods(record, now=True):
            if pod.labels.node == action.node:
                await self._cluster.delete("pods", pod.name, uid=pod.uid, grace=0 if action.force else None)

    async def _end_servers(self, record: JobRecord, action: EndServers) -> None:
        """Write the request to end into the pod, which the kubelet passes on; a pod that was replaced meanwhile is another."""
        pods = await self._pods(record, now=True)
        due = seen.unneeded(pods)
        for pod in pods:
            if pod.labels.node != action.node or pod.uid not in due:
                continue
            change = {"metadata": {"uid": pod.uid, "annotations": {END: "drivers-succeeded"}}}
            try:
                self._cluster.cache.pods.put(await self._cluster.patch("pods", pod.name, change, MERGE_PATCH))
            except ApiError as error:
                if error.status == 403:
                    raise ActionError(
                        f"pod {pod.name}: no permission to patch pods, so the server cannot be ended ({error.said}); "
                        "`rallypoint manifests rbac --wrappers` prints the Role that lets supervisors patch pods"
                    ) from error
                if error.status not in (404, 409):
                    raise ActionError(f"pod {pod.name}: the server cannot be ended: {error.said or error}") from error


def _driver(record: JobRecord, wrapper: Wrapper | None, pods: tuple[NodeSeen, ...]) -> tuple[NodeSeen, ...]:
    """Return the driver of a Ray cluster, as the only node of its job."""
    there = wrapper is not None and wrapper.components.deployed > 0
    if wrapper is not None and wrapper.suspended and not any(pod.present for pod in pods):
        return ()
    found = rays.node(record, None if wrapper is None else wrapper.driver, pods, there=there)
    return () if found is None else (found,)


async def sweep_wrappers(cluster: Cluster, record: JobRecord) -> bool:
    """Delete the wrapper of a job whose record is gone; return whether there was one."""
    for kind in WRAPPING:
        wrappers = wrappers_of(cluster, kind)
        try:
            found = await wrappers.get(record.name, now=True)
        except ApiError as error:
            if error.status == 403:  # who may not look has made none
                continue
            raise
        if found is not None and found.job_uid == record.uid:
            await wrappers.delete(found)
            return True
    return False


def _wants(record: JobRecord, plan: Plan, attempt: int) -> bool:
    """Return whether a job as it is stored now waits for the wrapper of this attempt."""
    if record.deletion:
        return False
    if plan.kind is Kind.APPWRAPPER:
        return record.phase is Phase.EMPTY and record.attempt + 1 == attempt
    return record.phase in (Phase.RESUMING, Phase.RUNNING) and record.attempt == attempt


def _has_failed(pod: PodView) -> bool:
    ended = any(isinstance(c.state, Terminated) and c.state.code != 0 for c in pod.containers)
    return ended and (pod.phase == "Failed" or not pod.deleting)
