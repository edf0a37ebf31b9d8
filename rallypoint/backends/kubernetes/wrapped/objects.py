"""The wrappers of one namespace: watched together for all jobs of an event loop, and asked for one by one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.client import MERGE_PATCH, parse
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import ATTEMPT, JOB, UID
from rallypoint.backends.kubernetes.watching.bounded import MESSAGE, Texts, entries, fields, identity, number
from rallypoint.backends.kubernetes.watching.cache import Shelf
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.watch import Target, Watch
from rallypoint.backends.kubernetes.wrapped import rays, seen
from rallypoint.backends.kubernetes.wrapped.kinds import RAYS, WRAPPING
from rallypoint.supervision.observation import Components, Told
from rallypoint.wire.bounds import read_count
from rallypoint.wire.plan import Kind

__all__ = ["Wrapper", "Wrappers", "view_of", "wrappers_of"]

_WITHOUT = "read each job's own objects"

#: Fields in which a controller reports the state of an object: that of AppWrapper, and the KubeRay operator.
_WORDS = ("phase", "jobStatus", "jobDeploymentStatus", "state", "reason")

#: Conditions of a wrapper that are read; each controller has some ten types.
_CONDITIONS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """What is kept of an AppWrapper, a PyTorchJob, a RayJob or a RayCluster.

    Attributes:
        version: its resourceVersion.
        job, job_uid: whose it is, by its labels; `attempt` is the one that it was made for.
        told: what an AppWrapper's controller says; `components` what a PyTorchJob's does.
        condition: the one that its controller set last, for people.
        suspended: somebody, or a queue, has suspended it, and it is no AppWrapper: it has no pods.
        driver: of a RayJob.
        unreadable: why its status cannot be used; "" for one that can.
    """

    name: str
    uid: str
    version: str
    job: str
    job_uid: str
    attempt: int
    told: Told | None = None
    components: Components
    suspended: bool = False
    condition: str = ""
    driver: rays.Driver | None = None
    unreadable: str = ""


def view_of(kind: Kind, given: Mapping[str, Any]) -> Wrapper | None:
    """Return what is kept of a wrapper; None for what can be none."""
    found = _within_limits(given)
    metadata, spec = found["metadata"], found["spec"]
    if not metadata["name"]:
        return None
    told, unreadable = _told(found) if kind is Kind.APPWRAPPER else (None, "")
    return Wrapper(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        job=metadata["labels"][JOB],
        job_uid=metadata["labels"][UID],
        attempt=read_count(metadata["annotations"].get(ATTEMPT, "0")) or 0,
        told=told,
        unreadable=unreadable,
        components=seen.components(found),
        condition=(rays.condition if kind in RAYS else seen.controller)(WRAPPING[kind].kind, found),
        suspended=bool((spec if kind in RAYS else spec["runPolicy"]).get("suspend")),
        driver=rays.rayjob_driver(found) if kind is Kind.RAYJOB else None,
    )


def _within_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a wrapper that are used, each with a value of its type."""
    meta, spec, status = fields(given.get("metadata")), fields(given.get("spec")), fields(given.get("status"))
    labels, annotations, texts = fields(meta.get("labels")), fields(meta.get("annotations")), Texts()
    named = {key: identity(meta.get(key)) for key in ("name", "uid", "resourceVersion")}
    said = {key: text for key in (ATTEMPT, seen.SUSPENDED) if (text := texts.cut(annotations.get(key)))}
    return {
        "metadata": {
            **named,
            **({"deletionTimestamp": True} if "deletionTimestamp" in meta else {}),
            "labels": {key: identity(labels.get(key)) for key in (JOB, UID)},
            "annotations": said,
        },
        "spec": {"suspend": bool(spec.get("suspend")), "runPolicy": fields(spec.get("runPolicy"))},
        "status": {
            **{key: texts.cut(status.get(key)) for key in _WORDS},
            "resettingCount": number(status.get("resettingCount")),
            "message": texts.cut(status.get("message"), MESSAGE),
            "conditions": [_condition(one, texts) for one in entries(status.get("conditions"), _CONDITIONS)],
        },
    }


def _condition(given: Mapping[str, Any], texts: Texts) -> dict[str, str]:
    said = {key: identity(given.get(key)) for key in ("type", "status", "lastTransitionTime")}
    return {**said, "reason": texts.cut(given.get("reason")), "message": texts.cut(given.get("message"), MESSAGE)}


def _told(found: Mapping[str, Any]) -> tuple[Told | None, str]:
    """Return the status of an AppWrapper, or None and the reason. Any user of the namespace can write one."""
    try:
        return seen.told(found), ""
    except BackendError as error:
        return None, str(error)


class Wrappers:
    """The wrappers of one kind."""

    def __init__(self, cluster: Cluster, kind: Kind) -> None:
        self._cluster, self._kind = cluster, kind
        self._shelf: Shelf[Wrapper] = Shelf(lambda found: view_of(kind, found), self._told)
        path = WRAPPING[kind].path(cluster.namespace)
        self._watch = Watch(cluster.api, Target(path=path, selector=JOB), self._shelf, without=_WITHOUT)

    def _told(self, _: Wrapper | None, wrapper: Wrapper, gone: bool) -> None:  # noqa: FBT001  the shape of Told
        self._cluster.cache.tell(wrapper.job)

    async def get(self, name: str, *, now: bool) -> Wrapper | None:
        """Return a wrapper; that there is none is asked of the server itself, and so is everything with `now`.

        Raises `BackendError` for one whose status cannot be used.
        """
        self._cluster.also(self._watch)
        known = self._shelf.get(name) if self._watch.fresh and not now else None
        found = known or await self._look(name)
        if found is not None and found.unreadable:
            raise BackendError(found.unreadable)
        return found

    async def _look(self, name: str) -> Wrapper | None:
        path = self._path(name)
        try:
            found = await parse(await self._cluster.api.request("GET", path), f"GET {path}")
        except ApiError as error:
            if error.status != 404:
                raise
            known = self._shelf.get(name)
            if known is not None:
                self._shelf.forget(name, known.uid)
            return None
        return self._shelf.put(found)

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> None:
        """Create a wrapper, or only ask whether it could be."""
        path, query = self._path(), {"dryRun": "All"} if dry_run else None
        made = await parse(await self._cluster.api.request("POST", path, query=query, body=dict(manifest)), f"POST {path}")
        if not dry_run:
            self._shelf.put(made)

    async def patch(self, name: str, change: Mapping[str, Any]) -> None:
        """Merge a change into a wrapper."""
        path = self._path(name)
        data = await self._cluster.api.request("PATCH", path, body=dict(change), kind=MERGE_PATCH)
        self._shelf.put(await parse(data, f"PATCH {path}"))

    async def delete(self, wrapper: Wrapper, *, force: bool = False) -> None:
        """Ask for the end of just this wrapper and of all that is its; one that is gone is fine."""
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": wrapper.uid}}
        body |= {"gracePeriodSeconds": 0} if force else {}
        try:
            await self._cluster.api.request("DELETE", self._path(wrapper.name), body=body)
        except ApiError as error:
            if error.status != 404:
                raise
        await self._look(wrapper.name)

    def _path(self, name: str = "") -> str:
        return WRAPPING[self._kind].path(self._cluster.namespace, name)


_known: weakref.WeakKeyDictionary[Cluster, dict[Kind, Wrappers]] = weakref.WeakKeyDictionary()


def wrappers_of(cluster: Cluster, kind: Kind) -> Wrappers:
    """Return the wrappers of a kind, the same for everybody who shares the cluster."""
    kinds = _known.setdefault(cluster, {})
    if kind not in kinds:
        kinds[kind] = Wrappers(cluster, kind)
    return kinds[kind]
