"""Volumes as folders: what a pod mounts is laid out under the pod's own folder, and paths are rewritten to it.

There is no mount namespace, so a container sees its mounts where they are: each argument and each value of its environment
that names a mount path is rewritten. A path that exists on this machine and not in the volume is left as it is: it stands
for something that the image would have brought (a script of a test, say, below a mounted /tmp).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator.access import Access
from tests.emulator.bodies import Body
from tests.emulator.kubelet.fields import field_value, resource_value
from tests.emulator.store import Store

__all__ = ["ACCOUNT_PATH", "Mounts", "VolumeError", "Volumes"]

ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class VolumeError(Exception):
    """A volume whose source is not there (yet)."""


@dataclass(frozen=True)
class Mounts:
    """Where the mount paths of one container are."""

    folders: tuple[tuple[str, Path], ...]

    def rewrite(self, text: str) -> str:
        """`text` with every mount path in it replaced; the longest match counts."""
        paths = "|".join(re.escape(path) for path, _ in sorted(self.folders, key=lambda one: -len(one[0])))
        if not paths:
            return text
        return re.sub(rf"(?<![\w./-])({paths})(/[^\s'\":;,=)]*)?(?![\w.-])", self._place, text)

    def _place(self, found: re.Match[str]) -> str:
        folder, inner = dict(self.folders)[found[1]], found[2] or ""
        inside = folder / inner.lstrip("/")
        return found[0] if not inside.exists() and Path(found[0]).exists() else f"{folder}{inner}"

    def of(self, path: str) -> Path | None:
        """The folder that is mounted exactly there."""
        return next((folder for mounted, folder in self.folders if mounted.rstrip("/") == path), None)


@dataclass
class Volumes:
    """The volumes of one pod."""

    pod: Body
    store: Store
    access: Access
    folder: Path
    shared: Path
    """Where claims have their folders: what is written there outlives the pod."""
    image: Mapping[str, Path] = field(default_factory=dict)
    """Folders of this machine that images hold, by their paths in them."""
    _ready: dict[str, Path] = field(default_factory=dict)

    def prepare(self) -> None:
        """Lay out all volumes; VolumeError names the first that cannot be."""
        for volume in self.pod["spec"].get("volumes") or []:
            self._ready[volume["name"]] = self._one(volume)
        if self._automounted():
            self._ready[ACCOUNT_PATH] = self._write(".account", self._account_files())

    def refresh(self, pod: Body) -> None:
        """Write the pod's own fields again, as a kubelet does when the pod has changed; each file is replaced in one step."""
        self.pod = pod
        for volume in pod["spec"].get("volumes") or []:
            folder = self._ready.get(volume["name"])
            if folder is None or "downwardAPI" not in volume:
                continue
            for path, data in self._downward(volume["downwardAPI"]).items():
                beside = folder / f".{path}"
                beside.write_bytes(data)
                beside.replace(folder / path)

    def mounts(self, container: Body) -> Mounts:
        """Where a container's mounts are, over what its image holds."""
        mounts = self._mounted(container)
        known = dict(mounts.folders)
        image = [(path, folder) for path, folder in self.image.items() if path not in known]
        claims = [(path, folder) for path, folder in mounts.folders if folder.is_relative_to(self.shared)]
        self._tell(Mounts((*claims, *image)))
        return Mounts((*mounts.folders, *image))

    def _tell(self, mounts: Mounts) -> None:
        """Rewrite what is told in Secrets, too: there are plans in them, with paths of claims and of the image."""
        for volume in self.pod["spec"].get("volumes") or []:
            for file in self._ready[volume["name"]].glob("*.json") if "secret" in volume else ():
                file.write_text(mounts.rewrite(file.read_text()))

    def _mounted(self, container: Body) -> Mounts:
        folders = [(mount["mountPath"].rstrip("/"), self._at(mount)) for mount in container.get("volumeMounts") or []]
        if ACCOUNT_PATH in self._ready and ACCOUNT_PATH not in dict(folders):
            folders.append((ACCOUNT_PATH, self._ready[ACCOUNT_PATH]))
        return Mounts(tuple(folders))

    def _at(self, mount: Body) -> Path:
        folder = self._ready[mount["name"]]
        inner = mount.get("subPath") or ""
        if inner and not (folder / inner).exists():
            (folder / inner).mkdir(parents=True)
        return folder / inner if inner else folder

    def _automounted(self) -> bool:
        return self.pod["spec"].get("automountServiceAccountToken") is not False

    def _one(self, volume: Body) -> Path:
        name = volume["name"]
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return self._claim(volume["persistentVolumeClaim"]["claimName"])
        files = self._files(name, volume)
        return self._write(name, files)

    def _files(self, name: str, volume: Body) -> dict[str, bytes]:
        if "secret" in volume:
            source = volume["secret"]
            return self._of_object("secrets", source.get("secretName", ""), source)
        if "configMap" in volume:
            return self._of_object("configmaps", volume["configMap"].get("name", ""), volume["configMap"])
        if "downwardAPI" in volume:
            return self._downward(volume["downwardAPI"])
        if "projected" in volume:
            files: dict[str, bytes] = {}
            for source in volume["projected"].get("sources") or []:
                files.update(self._projected(source))
            return files
        if set(volume) - {"name", "emptyDir"}:
            raise VolumeError(f'MountVolume.SetUp failed for volume "{name}": {min(set(volume) - {"name"})} is not emulated')
        return {}

    def _projected(self, source: Body) -> dict[str, bytes]:
        if "secret" in source:
            return self._of_object("secrets", source["secret"].get("name", ""), source["secret"])
        if "configMap" in source:
            return self._of_object("configmaps", source["configMap"].get("name", ""), source["configMap"])
        if "downwardAPI" in source:
            return self._downward(source["downwardAPI"])
        token = source.get("serviceAccountToken") or {}
        return {token.get("path", "token"): self._token()}

    def _of_object(self, key: str, name: str, source: Body) -> dict[str, bytes]:
        found = self.store.get(key, self.pod["metadata"]["namespace"], name)
        if found is None:
            if source.get("optional"):
                return {}
            raise VolumeError(f'MountVolume.SetUp failed for volume : {key[:-1]} "{name}" not found')
        data = decoded(key, found.body)
        items: Iterable[Body] = source.get("items") or [{"key": key, "path": key} for key in data]
        missing = [item["key"] for item in items if item["key"] not in data]
        if missing and not source.get("optional"):
            raise VolumeError(f"MountVolume.SetUp failed for volume : references non-existent key: {missing[0]}")
        return {item["path"]: data[item["key"]] for item in items if item["key"] in data}

    def _downward(self, source: Body) -> dict[str, bytes]:
        files = {}
        for item in source.get("items") or []:
            if "fieldRef" in item:
                text = field_value(self.pod, item["fieldRef"]["fieldPath"])
            else:
                text = resource_value(self.pod, None, item["resourceFieldRef"])
            files[item["path"]] = text.encode()
        return files

    def _account_files(self) -> dict[str, bytes]:
        return {"token": self._token(), "namespace": self.pod["metadata"]["namespace"].encode(), "ca.crt": b""}

    def _token(self) -> bytes:
        account = self.pod["spec"].get("serviceAccountName") or "default"
        return self.access.token_of(self.pod["metadata"]["namespace"], account).encode()

    def _write(self, name: str, files: dict[str, bytes]) -> Path:
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        return folder

    def _host_path(self, source: Body) -> Path:
        path = Path(source["path"])
        if source.get("type") == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        if source.get("type") and not path.exists():
            raise VolumeError(
                f"MountVolume.SetUp failed for volume : hostPath type check failed: {path} is not a {source['type']}"
            )
        return path

    def _claim(self, name: str) -> Path:
        namespace = self.pod["metadata"]["namespace"]
        if self.store.get("persistentvolumeclaims", namespace, name) is None:
            raise VolumeError(f'persistentvolumeclaim "{name}" not found')
        folder = self.shared / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def decoded(key: str, body: Body) -> dict[str, bytes]:
    """The files that a Secret or a ConfigMap holds."""
    data: dict[str, Any] = body.get("data") or {}
    binary = {name: base64.b64decode(value) for name, value in (body.get("binaryData") or {}).items()}
    if key == "secrets":
        return {name: base64.b64decode(value) for name, value in data.items()}
    return {**binary, **{name: value.encode() for name, value in data.items()}}
