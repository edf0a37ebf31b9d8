"""What all jobs of one namespace share in one event loop: the connections, the watches and what they told.

There is one watch for pods, one for ConfigMaps and one for machines, however many jobs are followed; the first follower begins
them and the last one ends them. While they are up to date nothing else is asked of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.client import Api, KubeApi, parse
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.heartbeat import Heart
from rallypoint.backends.kubernetes.labels import JOB, PART, Part, selector
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cache import Cache, KubernetesChanges
from rallypoint.backends.kubernetes.watching.views import ConfigMapView, PodView
from rallypoint.backends.kubernetes.watching.watch import Target, Watch, pages

__all__ = ["Cluster", "joined"]

#: Seconds for which a follower waits for the first list. Without it the server is asked itself, which is correct and slower.
_FIRST_LIST = 30.0

_WITHOUT_HOSTS = (
    "lost nodes are detected only when their pods are evicted, some minutes later (`rallypoint manifests rbac "
    "--nodes` prints the required ClusterRole)"
)

#: Where kinds are that are not of the core.
_GROUPS: Mapping[str, str] = {
    "leases": "/apis/coordination.k8s.io/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
}


class _ConfigMaps:
    """Jobs and statuses come by one watch and stand on two shelves."""

    def __init__(self, cache: Cache) -> None:
        self._shelves = (cache.jobs, cache.statuses)

    @property
    def full(self) -> bool:
        return any(shelf.full for shelf in self._shelves)

    def put(self, found: Mapping[str, Any]) -> None:
        for shelf in self._shelves:
            shelf.put(found)

    def remove(self, found: Mapping[str, Any]) -> None:
        for shelf in self._shelves:
            shelf.remove(found)

    def keep(self, uids: Collection[str], version: str) -> None:
        for shelf in self._shelves:
            shelf.keep(uids, version)


class Cluster:
    """One namespace of one cluster, as one event loop sees it."""

    def __init__(self, access: Access, api: Api | None = None) -> None:
        self.access = access
        self.namespace = access.namespace
        self.api = api or KubeApi(access)
        self.cache = Cache()
        self.configmaps = Watch(
            self.api,
            Target(path=self.path("configmaps"), selector=f"{JOB},{PART} in ({Part.JOB.value},{Part.STATUS.value})"),
            _ConfigMaps(self.cache),
        )
        self.pods = Watch(self.api, Target(path=self.path("pods"), selector=f"{JOB},{PART}"), self.cache.pods)
        self.hosts = Watch(self.api, Target(path="/api/v1/nodes"), self.cache.hosts, without=_WITHOUT_HOSTS)
        self._more: list[Watch] = []
        self.users = 0
        self._followers = 0
        self._starting = asyncio.Lock()
        #: Lets one thread at a time parse followed logs.
        self.parsing = asyncio.Lock()
        self._heart: Heart | None = None

    def heart(self, beat: float) -> Heart:
        """Return the heart of this event loop; the first one to ask says how often it beats."""
        if self._heart is None:
            self._heart = Heart(self, beat=beat)
        return self._heart

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        """Return the path of a kind's collection in the namespace, of one object, or of a part of it.

        Raises `BackendError` for a name with a slash, which would be a path below another object.
        """
        if "/" in name:
            raise BackendError(
                f"{kind}: the name {name!r} is not allowed; expected the name of a Kubernetes object, without '/'"
            )
        group = _GROUPS.get(kind, "/api/v1")
        return "/".join(part for part in (group, "namespaces", self.namespace, kind, name, sub) if part)

    @property
    def fresh(self) -> bool:
        """What the cache holds is what the server has told up to now."""
        return self.configmaps.fresh and self.pods.fresh

    @contextlib.asynccontextmanager
    async def following(self, job: str) -> AsyncIterator[KubernetesChanges]:
        """Follow one job, with the watches that all jobs share."""
        changes = self.cache.follow(job)
        self._followers += 1
        try:
            async with self._starting:
                for watch in self._watches:
                    watch.start()
            await asyncio.gather(self.configmaps.listed(_FIRST_LIST), self.pods.listed(_FIRST_LIST))
            yield changes
        finally:
            self.cache.leave(job, changes)
            self._followers -= 1
            if not self._followers:
                await self._stop()

    async def _stop(self) -> None:
        async with self._starting:
            if not self._followers:
                await asyncio.gather(*(watch.stop() for watch in self._watches))

    @property
    def _watches(self) -> tuple[Watch, ...]:
        return self.configmaps, self.pods, self.hosts, *self._more

    def also(self, watch: Watch) -> None:
        """Watch something more from now on, whenever a job is followed."""
        if watch not in self._more:
            self._more.append(watch)
            if self._followers:
                watch.start()

    async def close(self) -> None:
        """End the watches and close the connections."""
        await self._stop()
        await self.api.close()

    # --- Asking the server itself

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object as it is now, or None when there is none of this name."""
        path = self.path(kind, name)
        try:
            found: dict[str, Any] = await parse(await self.api.request("GET", path), f"GET {path}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if not isinstance(found.get("metadata"), dict):
            raise ApiError(
                f"GET {path}",
                status=502,
                said="the response of the API server is not a Kubernetes object: the field metadata is missing",
            )
        return found

    async def create(self, kind: str, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object and return it as it is; with `dry_run` only ask whether it could be."""
        path = self.path(kind)
        query = {"dryRun": "All"} if dry_run else None
        created: dict[str, Any] = await parse(
            await self.api.request("POST", path, query=query, body=dict(manifest)), f"POST {path}"
        )
        return created

    async def patch(self, kind: str, name: str, change: Any, how: str) -> dict[str, Any]:
        """Change an object and return it as it is."""
        path = self.path(kind, name)
        changed: dict[str, Any] = await parse(await self.api.request("PATCH", path, body=change, kind=how), f"PATCH {path}")
        return changed

    async def delete(self, kind: str, name: str, *, uid: str = "", version: str = "", grace: int | None = None) -> None:
        """Ask for the end of an object, if it is still the one of that uid, and at that version; one that is gone is fine."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid, **({"resourceVersion": version} if version else {})}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        path = self.path(kind, name)
        try:
            told = await parse(await self.api.request("DELETE", path, body=body), f"DELETE {path}")
        except ApiError as error:
            if error.status != 404:
                raise
            told = {}
        if kind == "pods" and told.get("kind") == "Pod" and (told.get("metadata") or {}).get("deletionTimestamp"):
            self.cache.pods.put(told)

    async def time(self) -> float:
        """Return the API server's own clock, in whole seconds since the epoch."""
        return await self.api.time()

    async def job(self, configmap: str) -> ConfigMapView | None:
        """Return a job's ConfigMap as it is now, and remember it."""
        found = await self.get("configmaps", configmap)
        if found is None:
            known = self.cache.job(configmap)
            if known is not None:
                self.cache.jobs.forget(configmap, known.uid)
            return None
        return self.cache.jobs.put(found)

    async def pods_of(self, job: JobRef) -> tuple[PodView, ...]:
        """Return the pods of a job as they are now, and remember them; those, too, for which the cache has no room."""
        told: dict[str, PodView] = {}
        version = ""
        async for page in pages(self.api, Target(path=self.path("pods"), selector=selector(job))):
            told |= {pod.uid: pod for pod in map(self.cache.pods.put, page.items) if pod is not None}
            version = page.version
        self.cache.pods.keep(told.keys(), version, among=lambda pod: pod.labels.uid == job.uid)
        kept = self.cache.pods_of(job.uid)
        if not self.cache.pods.full:
            return kept
        more = (pod for pod in told.values() if pod.labels.uid == job.uid and self.cache.pods.get(pod.name) is None)
        return (*kept, *more)


#: The clusters of each event loop.
_clusters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Access, Cluster]] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def joined(access: Access) -> AsyncIterator[Cluster]:
    """Share this loop's cluster while the context lasts; the last one to leave closes it."""
    clusters = _clusters.setdefault(asyncio.get_running_loop(), {})
    cluster = clusters.get(access)
    if cluster is None:
        cluster = clusters[access] = Cluster(access)
    cluster.users += 1
    try:
        yield cluster
    finally:
        cluster.users -= 1
        if not cluster.users:
            clusters.pop(access, None)
            await cluster.close()
