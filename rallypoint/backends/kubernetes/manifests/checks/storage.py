"""Do volumes and mounts belong together, and do they leave ours alone? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from rallypoint.backends.kubernetes.manifests.checks.place import DNS_LABEL, Place, Wrong, is_dns_label
from rallypoint.backends.kubernetes.manifests.parts import TRAINER, container_of, template_of
from rallypoint.backends.kubernetes.manifests.volumes import OURS, RUN, SECRETS, SHM, STATUS, TLS
from rallypoint.job import Role

__all__ = ["check"]

#: Paths that are ours, and what a user who wants something there does instead.
_TAKEN = {
    SECRETS: "another path; this one holds the job's plan and secret",
    STATUS: "another path; this one holds the job's last status",
    TLS: "another path; this one holds the job's certificates",
    RUN: "another path; this one is the agent's working folder",
    SHM: "another path; resources.shm sets the size of /dev/shm",
}


def check(place: Place, role: Role) -> Iterator[Wrong]:
    """Yield each volume that is none, and each mount that cannot be."""
    template = template_of(role)["spec"]
    at = place.at("pod_template", "spec")
    names: set[str] = set()
    for where, volumes in ((place.at("volumes"), role.volumes), (at.at("volumes"), template.get("volumes") or ())):
        mine: set[str] = set()
        for index, volume in enumerate(volumes):
            yield from _volume(where.at(index), volume, mine)
            mine.add(str(volume.get("name")))
        names |= mine
    mounts = container_of(template, TRAINER).get("volumeMounts") or ()
    claimed = {str(item.get("name")) for item in template.get("volumeClaimTemplates") or ()}
    yield from _mounts(place.at("volume_mounts"), role.volume_mounts, names | claimed)
    yield from _mounts(at.at("containers", TRAINER, "volumeMounts"), mounts, names | claimed)


def _volume(at: Place, volume: Mapping[str, Any], others: set[str]) -> Iterator[Wrong]:
    name = volume.get("name")
    if not is_dns_label(name):
        yield at.at("name").refused(name, DNS_LABEL)
    elif str(name).startswith(OURS):
        yield at.at("name").refused(name, f"a name that does not begin with {OURS}, which is reserved")
    elif name in others:
        yield at.at("name").refused(name, "a different name for each volume")
    sources = [key for key in volume if key != "name"]
    if len(sources) != 1 or not isinstance(volume[sources[0]], Mapping):
        yield at.refused(dict(volume), "a name and one source, such as {name: data, persistentVolumeClaim: {claimName: data}}")


def _mounts(at: Place, mounts: Any, volumes: set[str]) -> Iterator[Wrong]:
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        path = str(mount.get("mountPath") or "")
        if mount.get("name") not in volumes:
            known = ", ".join(sorted(volumes)) or "no volume is defined"
            yield at.at(index, "name").refused(mount.get("name"), f"the name of a volume ({known})")
        yield from _path(at.at(index, "mountPath"), path, paths)
        paths.add(path)


def _path(at: Place, path: str, others: set[str]) -> Iterator[Wrong]:
    if not path.startswith("/") or ":" in path:
        yield at.refused(path, "an absolute path without ':'")
    elif path in others:
        yield at.refused(path, "a different path for each mount")
    for taken, instead in _TAKEN.items():
        if PurePosixPath(taken) in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield at.refused(path, instead)
