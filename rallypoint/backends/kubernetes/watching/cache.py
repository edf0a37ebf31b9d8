"""What the watches have told of all jobs of one namespace, and who waits for news of which job. No I/O."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from rallypoint.backends.contract import Changes
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.watching.bounded import memory_of
from rallypoint.backends.kubernetes.watching.gone import Gone
from rallypoint.backends.kubernetes.watching.views import ConfigMapView, HostView, PodView, configmap_view, host_view, pod_view

__all__ = ["Cache", "KubernetesChanges", "Shelf", "View"]

#: Objects whose deletion is remembered, so that a late word of the watch does not bring them back.
_GRAVES = 4096

#: Bytes of the places of an object in the tables of a cache.
_PLACE = 512

#: Bytes of the objects of one kind that are kept. What is above is read from the server when it is needed.
MOST_BYTES = 512 << 20


class View(Protocol):
    """What every kept object has: a name, and which object of that name it is, and of which age."""

    @property
    def name(self) -> str:
        """Of the object."""
        ...

    @property
    def uid(self) -> str:
        """Unlike any other object's."""
        ...

    @property
    def version(self) -> str:
        """Its resourceVersion."""
        ...


V = TypeVar("V", bound=View)
Told = Callable[[V | None, V, bool], None]


class Shelf(Generic[V]):
    """The objects of one kind, by name: those that a watch told of, and those that we were told of in an answer.

    The two come in any order; the newer word stands. `told(before, view, gone)` is called after each change, with the view of
    this object that was kept before.
    """

    def __init__(
        self, project: Callable[[Mapping[str, Any]], V | None], told: Told[V], *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._project, self._told, self._most_bytes = project, told, most_bytes
        self._views: dict[str, V] = {}
        self._sizes: dict[str, int] = {}
        self._size, self._dropped, self.full = 0, False, False
        self._graves: collections.OrderedDict[str, None] = collections.OrderedDict()

    def get(self, name: str) -> V | None:
        """Return an object of this name."""
        return self._views.get(name)

    def __iter__(self) -> Iterator[V]:
        return iter(self._views.values())

    def __len__(self) -> int:
        return len(self._views)

    def put(self, found: Mapping[str, Any]) -> V | None:
        """Take an object as it is now; returns what is kept of it, None for one that is none of ours."""
        view = self._project(found)
        if view is None:
            return None
        before = self._views.get(view.name)
        if view.uid in self._graves or (before is not None and before.uid == view.uid and not _newer(view, before)):
            return before if before is not None and before.uid == view.uid else view
        if before is not None and before.uid != view.uid:
            self._bury(before)
            before = None
        size = _PLACE + memory_of(view)
        added = size - (self._sizes[view.name] if before is not None else 0)
        if added > 0 and self._size + added > self._most_bytes:
            self._dropped = self.full = True
            return view
        self._size += added
        self._views[view.name], self._sizes[view.name] = view, size
        self._told(before, view, False)
        return view

    def remove(self, found: Mapping[str, Any]) -> None:
        """Take note that an object was deleted; `found` is how it was seen last."""
        view = self._project(found)
        if view is not None and view.uid not in self._graves:
            self._bury(view)

    def forget(self, name: str, uid: str) -> None:
        """Take note that the object `uid` of this name is not there any more, of which nothing else was said."""
        view = self._views.get(name)
        if view is not None and view.uid == uid:
            self._bury(view)
        else:
            self._dig(uid)

    def keep(self, uids: Collection[str], version: str, among: Callable[[V], bool] | None = None) -> None:
        """End a list as it was at `version`, whose objects were put: an older one whose uid is not among `uids` was deleted.

        With `among` the list was one of those alone.
        """
        for view in list(self._views.values()):
            if view.uid not in uids and (among is None or among(view)) and not _later(view.version, version):
                self._bury(view)
        if among is None:
            self.full, self._dropped = self._dropped, False

    def _bury(self, view: V) -> None:
        self._dig(view.uid)
        before = self._views.get(view.name)
        if before is not None and before.uid != view.uid:
            before = None
        if before is not None:
            self._size -= self._sizes.pop(view.name)
            del self._views[view.name]
        self._told(before, view, True)

    def _dig(self, uid: str) -> None:
        self._graves[uid] = None
        if len(self._graves) > _GRAVES:
            self._graves.popitem(last=False)


def _newer(view: View, before: View) -> bool:
    """Versions of one kind are numbers that grow; where a server does not keep to that, the later word is the newer one."""
    if view.version.isdigit() and before.version.isdigit():
        return _later(view.version, before.version)
    return view.version != before.version


def _later(version: str, other: str) -> bool:
    return version.isdigit() and other.isdigit() and int(version) > int(other)


class KubernetesChanges(Changes):
    """News of one job; what comes between two waits is not lost."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def tell(self) -> None:
        """Wake whoever waits."""
        self._news.set()

    async def wait(self, timeout: float) -> None:
        """Return at the next news, or those since the last call, or after `timeout` seconds."""
        # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the news.
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait([news], timeout=timeout)
        finally:
            news.cancel()
        self._news.clear()


class Cache:
    """All that is known of the jobs of one namespace; a job's pods are found by its uid."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.jobs: Shelf[ConfigMapView] = Shelf(_part(Part.JOB), self._configmap, most_bytes=most_bytes)
        self.statuses: Shelf[ConfigMapView] = Shelf(_part(Part.STATUS), self._status, most_bytes=most_bytes)
        self.pods: Shelf[PodView] = Shelf(pod_view, self._pod, most_bytes=most_bytes)
        self.hosts: Shelf[HostView] = Shelf(host_view, self._host)
        self._pods: dict[str, dict[str, PodView]] = collections.defaultdict(dict)
        #: Numbers of pods by machine and job: a machine may change its state often, and there may be 200,000 pods.
        self._jobs_on: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._gone = Gone()
        self._statuses: dict[str, ConfigMapView] = {}
        self._hosts: dict[str, tuple[str, bool | None, str]] = {}
        self._followers: dict[str, set[KubernetesChanges]] = collections.defaultdict(set)

    # --- Asking

    def job(self, configmap: str) -> ConfigMapView | None:
        """Return a job by the name of its ConfigMap."""
        return self.jobs.get(configmap)

    def status(self, job_uid: str) -> ConfigMapView | None:
        """Return the status of a job, by its record's uid."""
        return self._statuses.get(job_uid)

    def pods_of(self, job_uid: str) -> tuple[PodView, ...]:
        """Return the pods of a job, by its record's uid."""
        return tuple(self._pods.get(job_uid, {}).values())

    def gone_of(self, job_uid: str) -> tuple[PodView, ...]:
        """Return how those pods of a job were seen last that are deleted by now; as long as somebody follows the job."""
        return self._gone.of(job_uid)

    def forget_gone(self, job_uid: str, uids: Iterable[str]) -> None:
        """Keep no memory of these pods."""
        self._gone.forget(job_uid, uids)

    def host(self, name: str) -> HostView | None:
        """Return a machine."""
        return self.hosts.get(name)

    # --- Being told

    def follow(self, job: str) -> KubernetesChanges:
        """Return the news of a job from now on, until `leave`."""
        changes = KubernetesChanges()
        self._followers[job].add(changes)
        return changes

    def leave(self, job: str, changes: KubernetesChanges) -> None:
        """Send no more news there."""
        followers = self._followers.get(job, set())
        followers.discard(changes)
        if not followers:
            self._followers.pop(job, None)

    def tell(self, job: str) -> None:
        """Wake everybody who follows a job."""
        for changes in self._followers.get(job, ()):
            changes.tell()

    def _configmap(self, _: ConfigMapView | None, view: ConfigMapView, gone: bool) -> None:  # noqa: FBT001  the shape of Told
        self.tell(view.job)
        if gone:
            self._gone.drop(view.job_uid)

    def _status(self, before: ConfigMapView | None, view: ConfigMapView, gone: bool) -> None:  # noqa: FBT001
        # Any user of the namespace can change the label with the uid.
        if before is not None and self._statuses.get(before.job_uid) is before:
            del self._statuses[before.job_uid]
        if not gone:
            self._statuses[view.job_uid] = view
        self.tell(view.job)

    def _pod(self, before: PodView | None, view: PodView, gone: bool) -> None:  # noqa: FBT001
        if before is not None:
            self._unplace(before, kept=not gone and before.labels.uid == view.labels.uid)
        if not gone:
            self._pods[view.labels.uid][view.name] = view
            self._jobs_on[view.host][view.labels.job] += 1
        elif view.labels.job in self._followers and view.labels.part in (Part.NODE, Part.COORDINATOR):
            self._gone.add(view)
        if before is not None and before.labels.job != view.labels.job:
            self.tell(before.labels.job)
        self.tell(view.labels.job)

    def _unplace(self, view: PodView, *, kept: bool) -> None:
        """Take a pod out of the tables; with `kept`, its job has it still."""
        if not kept:
            pods = self._pods[view.labels.uid]
            del pods[view.name]
            if not pods:
                del self._pods[view.labels.uid]
        jobs = self._jobs_on[view.host]
        jobs[view.labels.job] -= 1
        if not jobs[view.labels.job]:
            del jobs[view.labels.job]
        if not jobs:
            del self._jobs_on[view.host]

    def _host(self, _: HostView | None, view: HostView, gone: bool) -> None:  # noqa: FBT001
        # A machine's every heartbeat is a change of its object; what matters of it changes a few times in its life.
        state = (view.uid, None if gone else view.ready, view.bad)
        if self._hosts.get(view.name) == state:
            return
        if gone:
            self._hosts.pop(view.name, None)
        else:
            self._hosts[view.name] = state
        for job in self._followers.keys() & self._jobs_on.get(view.name, {}).keys():
            self.tell(job)


def _part(part: Part) -> Callable[[Mapping[str, Any]], ConfigMapView | None]:
    def project(configmap: Mapping[str, Any]) -> ConfigMapView | None:
        view = configmap_view(configmap)
        return view if view is not None and view.part == part.value else None

    return project
