"""Custom resources: a definition that is created is served, one that is deleted takes its objects along."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, stamp
from tests.emulator.errors import ApiError
from tests.emulator.resources import Resource
from tests.emulator.schema import admission, list_keys_of
from tests.emulator.store import Change

__all__ = ["DEFINITIONS", "CrdController", "definitions_of", "read_definitions"]

KEY = "customresourcedefinitions.apiextensions.k8s.io"

#: Where the definitions are that the emulator registers by itself.
DEFINITIONS = Path(__file__).parents[1] / "data" / "crds"


#: What the controllers that can be had work on. Of Kueue's Workload there are the few fields that its stand-in uses.
CONTROLLED = {
    "appwrapper": DEFINITIONS / "appwrappers.yaml.gz",
    "jobset": DEFINITIONS / "jobsets.yaml.gz",
    "kueue": Path(__file__).parent / "controllers" / "workloads.yaml",
    "pytorchjob": DEFINITIONS / "pytorchjobs.yaml.gz",
    "raycluster": DEFINITIONS / "rayclusters.yaml.gz",
    "rayjob": DEFINITIONS / "rayjobs.yaml.gz",
}


def definitions_of(controllers: tuple[str, ...]) -> tuple[Path, ...]:
    """The files that define what these controllers work on."""
    return tuple(CONTROLLED[name] for name in sorted(controllers) if name in CONTROLLED)


def read_definitions(places: tuple[Path, ...]) -> tuple[Body, ...]:
    """The definitions in files and folders of .yaml or .yaml.gz."""
    files = [file for place in places for file in (sorted(place.glob("*.yaml*")) if place.is_dir() else [place])]
    return tuple(body for file in files for body in _read(file))


@functools.cache
def _read(file: Path) -> tuple[Body, ...]:
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(body for body in yaml.load_all(raw, Loader=loader) if body and body.get("kind") == "CustomResourceDefinition")


class CrdController:
    """Serves what definitions define; each is said to be established a moment after it came."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._new: list[str] = []
        self._gone: list[tuple[str, str, str, str]] = []
        api.store.listeners.append(self._noted)

    def pending(self) -> bool:
        return bool(self._new or self._gone)

    def sweep(self) -> None:
        new, self._new = self._new, []
        for name in new:
            if found := self._api.store.get(KEY, "", name):
                self._establish(found.body)
        gone, self._gone = self._gone, []
        for key, namespace, name, uid in gone:
            # The definition may be back by now, and so may be an object of that name: that one is another.
            found = self._api.store.get(key, namespace, name)
            if found is not None and found.body["metadata"]["uid"] == uid:
                self._api.store.remove(key, namespace, name)

    def _establish(self, body: Body) -> None:
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": stamp()}
            for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
        ]
        new = clone(body)
        new["status"] = {"conditions": conditions, "acceptedNames": body["spec"]["names"], "storedVersions": []}
        try:
            self._api.update(self._api.kind(KEY), body, new, subresource="status")
        except ApiError:  # changed meanwhile: that change is established in its turn
            return

    def _noted(self, change: Change) -> None:
        if change.now.key != KEY:
            return
        for resource in _resources(change.now.body):
            if change.type == "DELETED":
                self._api.kinds.pop(resource.key, None)
                left = self._api.store.all(resource.key)
                self._gone.extend((resource.key, one.namespace, one.name, one.body["metadata"]["uid"]) for one in left)
            elif change.before is None or change.before.body["spec"] != change.now.body["spec"]:
                self._api.kinds[resource.key] = resource
        if change.type == "ADDED":
            self._new.append(change.now.name)


def _resources(definition: Body) -> Iterator[Resource]:
    """The version that is stored; others would need a conversion."""
    spec = definition["spec"]
    for version in spec["versions"]:
        if not version.get("storage"):
            continue
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True}
        yield Resource(
            plural=spec["names"]["plural"],
            kind=spec["names"]["kind"],
            group=spec["group"],
            version=version["name"],
            namespaced=spec["scope"] == "Namespaced",
            subresources=tuple(name for name in (version.get("subresources") or {}) if name == "status"),
            short=tuple(spec["names"].get("shortNames") or ()),
            unconditional=False,
            generation=True,
            admit=admission(schema),
            list_keys=list_keys_of(schema),
        )
