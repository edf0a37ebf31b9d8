"""Doing what the supervisor decided. Each action names what it means, so doing it twice is doing it once.

What is created is owned by the job's ConfigMap and needs the attempt's Secret, which is deleted before anything else of the
attempt: what a supervisor creates late that slept meanwhile can never start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.contract import ActionError, BackendError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError, action_error
from rallypoint.backends.kubernetes.exclusion import (
    bad_hosts,
    choose_exclusion,
    has_no_room_elsewhere,
    left_hosts,
    lost_hosts,
)
from rallypoint.backends.kubernetes.labels import UID
from rallypoint.backends.kubernetes.leftovers import bring_up_to_date
from rallypoint.backends.kubernetes.machines import LostPods
from rallypoint.backends.kubernetes.manifests.blueprint import service_ports
from rallypoint.backends.kubernetes.manifests.coordinator import coordinator_pod
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.manifests.kueue import RETRIABLE
from rallypoint.backends.kubernetes.manifests.network_policy import network_policy_of
from rallypoint.backends.kubernetes.manifests.objects import service
from rallypoint.backends.kubernetes.manifests.parts import role_of
from rallypoint.backends.kubernetes.manifests.pods import node_pod
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.store import Store
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.judging import taken_by_queue
from rallypoint.backends.kubernetes.watching.views import PodView
from rallypoint.job import ElasticJob, Role
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Plan

__all__ = ["Actor"]

log = logging.getLogger(__name__)

#: Seconds for which a forced deletion waits for the word of the pod's machine that its processes are dead. Then, and where
#: nobody hears of that machine, the object is removed without it.
_WORD = 15.0

#: Phases in which a pod that ends has no successor in its group: the quota is to be free. A reset keeps it.
_NO_SUCCESSORS = frozenset({Phase.SUSPENDING, Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING})


class Actor:
    """The hands of one backend."""

    def __init__(self, cluster: Cluster, store: Store, lost: LostPods) -> None:
        self._cluster, self._store, self._lost = cluster, store, lost
        self._attempt_secrets = AttemptSecrets(cluster)
        #: Attempts whose Secret is there, and those whose Secret was deleted for good, by the job's uid.
        self._secrets: set[tuple[str, int]] = set()
        self._closed: set[tuple[str, int]] = set()
        self._forced: dict[str, float] = {}
        self._accounts_missing = self._closing_forbidden = False

    async def act(self, record: JobRecord, action: Action) -> None:
        """Do one action; see `Backend.act`."""
        if isinstance(action, Purge):
            await self._store.purge(record)
            self.forget(record.uid)
        elif isinstance(action, (CreateCoordinator, CreateNode)):
            await self._create(record, action)
        elif isinstance(action, RemoveCoordinator):
            await self._remove(record, names.coordinator_pod(self._store.ref(record), action.term), force=action.force)
        elif isinstance(action, RemoveNode):
            name = names.node_pod(self._store.ref(record), action.attempt, action.node, action.incarnation)
            await self._remove(record, name, force=action.force)
        else:
            raise ActionError(
                f"action {type(action).__name__} is not possible: jobs of kind `pods` have no AppWrapper components", fatal=True
            )

    # --- Creating

    async def _create(self, record: JobRecord, action: CreateCoordinator | CreateNode) -> None:
        try:
            spec, plan, ref = await self._store.spec(record)
        except BackendError as error:
            raise ActionError(str(error)) from error
        what = f"node {action.node}" if isinstance(action, CreateNode) else "the coordinator"
        try:
            await self._prepare(record, plan, ref, action.attempt)
            await self._create_pod(record, spec, plan, ref, action)
        except ActionError:
            raise
        except BackendError as error:
            raise action_error(error, what=what) from error

    async def _prepare(self, record: JobRecord, plan: Plan, ref: JobRef, attempt: int) -> None:
        """See to it that the attempt has its Secret, and the job its Service and a place for its status."""
        if (record.uid, attempt) in self._secrets:
            return
        # Read now: the Secret of an attempt that is over must not come back.
        stored = await self._store.load(record.name, now=True)
        if stored is None or stored.record.uid != record.uid:
            raise ActionError(f"job {record.name} was deleted")
        if stored.record.attempt != attempt or stored.record.phase not in (Phase.RESUMING, Phase.RUNNING):
            raise ActionError(f"job {record.name}: cannot create objects for attempt {attempt}, because this attempt has ended")
        await self._store.ensure_status(ref)
        await self.ensure("services", service(ref, service_ports(plan)))
        if plan.network_policy:
            await self.ensure("networkpolicies", network_policy_of(ref, plan))
        await self._attempt_secrets.ensure(ref, plan, attempt)
        self._secrets.add((record.uid, attempt))

    async def _create_pod(
        self, record: JobRecord, spec: ElasticJob, plan: Plan, ref: JobRef, action: CreateCoordinator | CreateNode
    ) -> None:
        off = await self._exclusion(record, plan, role_of(spec, plan), action)
        if isinstance(action, CreateNode):
            manifest = node_pod(
                ref,
                spec=spec,
                plan=plan,
                attempt=action.attempt,
                node=action.node,
                incarnation=action.incarnation,
                unseen=action.unseen,
                off=off,
            )
            await self.ensure("pods", manifest)
            return
        account = "" if self._accounts_missing else names.COORDINATOR_ROLE
        manifest = coordinator_pod(
            ref,
            spec=spec,
            plan=plan,
            attempt=action.attempt,
            term=action.term,
            service_account=account,
            off=off,
        )
        try:
            await self.ensure("pods", manifest)
        except ApiError as error:
            if not account or f'serviceaccount "{account}" not found' not in error.said.replace("\\", ""):
                raise
            if not self._accounts_missing:
                log.warning(
                    "service account %s/%s not found, so the coordinator cannot write the job status to a ConfigMap; the "
                    "supervisor requests the status directly from the coordinator. "
                    "To create the service account, apply the manifests that `rallypoint manifests rbac` prints",
                    self._cluster.namespace,
                    account,
                )
            self._accounts_missing = True
            await self._create_pod(record, spec, plan, ref, action)

    async def ensure(self, kind: str, manifest: Mapping[str, Any]) -> None:
        """Create an object unless it is there, as it is in `manifest`; one of its name that is another's is an error."""
        name = manifest["metadata"]["name"]
        try:
            created: Mapping[str, Any] = await self._cluster.create(kind, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._there(kind, name, manifest["metadata"]["labels"][UID])
            created = await bring_up_to_date(self._cluster, kind, manifest, found)
        if kind == "pods":
            self._cluster.cache.pods.put(created)

    async def _there(self, kind: str, name: str, uid: str) -> Mapping[str, Any]:
        found = await self._cluster.get(kind, name)
        if found is None:
            raise ActionError(f"cannot create {kind}/{name} yet: an older object of this name was just being deleted")
        if ((found["metadata"].get("labels") or {}).get(UID)) != uid:
            raise ActionError(
                f"{kind}/{name} already exists and does not belong to this job; delete the existing object", fatal=True
            )
        return found

    # --- Removing

    async def _remove(self, record: JobRecord, name: str, *, force: bool) -> None:
        try:
            if record.phase in (Phase.RESETTING, Phase.SUSPENDING, Phase.TERMINATING):
                await self._end_attempt(record)
            pod = self._cluster.cache.pods.get(name) if self._cluster.fresh else None
            if pod is None:
                pod = await self._look(name)
            if pod is None or pod.labels.uid != record.uid:
                return
            if record.phase in _NO_SUCCESSORS:
                await self.close_group(pod)
            await self.end_pod(pod, force=force)
        except ApiError as error:
            # Another object of the name, or a conflict: the next turn sees which.
            raise ActionError(f"cannot delete pod {name}: {error.said or error}") from error

    async def end_pod(self, pod: PodView, *, force: bool = False) -> None:
        """Ask for the end of a pod, if it is still this one; by force also where it was asked before."""
        if pod.only_kept or (pod.deleting and not force):
            return
        await self._cluster.delete("pods", pod.name, uid=pod.uid, grace=self._grace(pod) if force else None)
        if force and pod.over:
            self._cluster.cache.pods.forget(pod.name, pod.uid)

    async def close_groups(self, record: JobRecord) -> None:
        """Tell Kueue that nobody takes the place of the pods of a job that is over: so it lets go of them and their quota."""
        for pod in self._cluster.cache.pods_of(record.uid):
            await self.close_group(pod)

    async def close_group(self, pod: PodView) -> None:
        """Say so of one pod."""
        # What the queue itself has taken away it wants back in the same group.
        if not pod.awaits_successor or taken_by_queue(pod):
            return
        try:
            change = {"metadata": {"uid": pod.uid, "annotations": {RETRIABLE: "false"}}}
            self._cluster.cache.pods.put(await self._cluster.patch("pods", pod.name, change, MERGE_PATCH))
        except ApiError as error:
            if error.status == 403 and not self._closing_forbidden:
                namespace, reason = self._cluster.namespace, error.said
                log.warning(
                    "namespace=%s: the supervisor has no permission to patch pods, so it cannot inform Kueue about the end of "
                    "a pod group (%s). Kueue frees the quota of the group when all pods of the group are deleted. `rallypoint "
                    "manifests rbac --queues` prints the Role that lets supervisors patch pods",
                    namespace,
                    reason,
                )
                self._closing_forbidden = True
            elif error.status not in (403, 404, 409):
                raise

    async def _look(self, name: str) -> PodView | None:
        found = await self._cluster.get("pods", name)
        return None if found is None else self._cluster.cache.pods.put(found)

    def _grace(self, pod: PodView) -> int:
        """Return how many seconds a pod has that is removed by force: one, for its machine to say that it is dead, or none."""
        now = asyncio.get_running_loop().time()
        began = self._forced.setdefault(pod.uid, now)
        host = self._cluster.cache.host(pod.host)
        unheard = not pod.host or (host is not None and host.ready is None)
        return 0 if pod.over or unheard or self._lost.reason(pod) or now - began > _WORD else 1

    async def _end_attempt(self, record: JobRecord) -> None:
        """Delete the Secret of the attempt: from now on nothing of it can start."""
        key = (record.uid, record.attempt)
        if key not in self._closed:
            await self._attempt_secrets.delete(self._store.ref(record), record.attempt)
            self._secrets.discard(key)
            self._closed.add(key)

    async def _exclusion(self, record: JobRecord, plan: Plan, role: Role, action: CreateCoordinator | CreateNode) -> Exclusion:
        """Return which machines a new pod of the attempt keeps off; faults of the past keep nodes off, and no coordinator."""
        hosts = tuple(self._cluster.cache.hosts)
        lost = await self._lost.machines()
        if isinstance(action, CreateCoordinator):
            return choose_exclusion(lost, frozenset(), hosts or None, role)
        devices = any(pod.devices for pod in self._cluster.cache.pods_of(record.uid))
        flagged = frozenset(host.name for host in hosts if host.bad) if devices else frozenset()
        bad = bad_hosts(record)
        back = lost_hosts(record) - lost if has_no_room_elsewhere(record, action.node, action.incarnation) else frozenset()
        unwanted = (bad - back) | lost | left_hosts(record, plan, hosts)
        chosen = choose_exclusion(unwanted, flagged, hosts or None, role, grouped=bool(plan.place))
        return dataclasses.replace(chosen, preferred=chosen.preferred | back)

    def forget(self, uid: str) -> None:
        """Forget what was done for a job that is over."""
        for known in (self._secrets, self._closed):
            known.difference_update([key for key in known if key[0] == uid])
