"""Snapshots persisted at an fsspec URL: whoever has a manifest there is complete, and it is written last."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.manifest import MANIFEST, Checkpoint, FileEntry, Manifest, newest_first
from rallypoint.checkpoint.store import APART, BLOCK, Store
from rallypoint.wire.codec import WireError, dumps, loads

__all__ = ["UrlStore", "open_store"]


def open_store(where: str | os.PathLike[str]) -> Store:
    """Return the store that a path or URL names; raises `CheckpointError` for a URL that nothing here can open."""
    text = os.fspath(where)
    if "://" not in text or text.startswith("file://"):
        return FolderStore(Path(text.removeprefix("file://")))
    return UrlStore(text)


class UrlStore:
    """A folder of a file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415  an extra
        except ModuleNotFoundError as error:
            raise CheckpointError(f"storage {url}: requires the package fsspec; install it, or use a plain path") from error
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise CheckpointError(f"storage {url}: {error}") from error
        self._url = url

    def named(self) -> list[Checkpoint]:
        return [one for one in self._folders() if self._fs.exists(self._at(one.path.name, MANIFEST))]

    def complete(self) -> list[Manifest]:
        found = []
        for one in self.named():
            with contextlib.suppress(OSError, WireError):
                manifest = loads(Manifest, self._fs.cat_file(self._at(one.path.name, MANIFEST)))
                sizes = {name: self._fs.size(self._at(one.path.name, name)) for name in manifest.files}
                if sizes == {name: entry.size for name, entry in manifest.files.items()}:
                    found.append(manifest)
        return found

    def begin(self, draft: str, size: int) -> None:
        self._fs.makedirs(self._at(_final(draft)), exist_ok=True)

    def write(self, draft: str, file: str, source: int, size: int) -> None:
        with self._fs.open(self._at(_final(draft), file), "wb") as target:
            done = 0
            while done < size:
                block = os.pread(source, min(BLOCK, size - done), done)
                if not block:
                    raise CheckpointError(f"{draft}: incomplete snapshot: only {done} of {size} bytes could be read")
                target.write(block)
                done += len(block)

    def note(self, draft: str, file: str, content: bytes) -> None:
        self._fs.pipe_file(self._at(_final(draft), file), content)

    def notes(self, draft: str) -> dict[str, bytes]:
        name = _final(draft)
        return {file: self._fs.cat_file(self._at(name, file)) for file in self._files(name) if file.endswith(".json")}

    def describe(self, draft: str, files: Sequence[str]) -> dict[str, FileEntry]:
        # What was uploaded is not read again: each part has a digest of its own, which is proven when it is loaded.
        return {file: FileEntry(size=self._fs.size(self._at(_final(draft), file)), sha256="") for file in files}

    def publish(self, draft: str, name: str, manifest: Manifest) -> None:
        self._fs.pipe_file(self._at(name, MANIFEST), dumps(manifest, indent=1).encode())

    def discard(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name, MANIFEST))
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    @contextlib.contextmanager
    def fetched(self, checkpoint: Checkpoint, files: Sequence[str]) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="rallypoint-fetched-") as temporary:
            for file in files:
                self._fs.get_file(self._at(checkpoint.path.name, file), str(Path(temporary, file)))
            yield Path(temporary)

    def _folders(self) -> list[Checkpoint]:
        try:
            self._fs.invalidate_cache()
            entries = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return newest_first(Path(str(entry)) for entry in entries)

    def _files(self, name: str) -> list[str]:
        self._fs.invalidate_cache()
        names = [Path(str(entry)).name for entry in self._fs.ls(self._at(name), detail=False)]
        return sorted(file for file in names if file != MANIFEST)

    def _at(self, name: str, file: str = "") -> str:
        return "/".join(filter(None, (self._root.rstrip("/"), name, file)))


def _final(draft: str) -> str:
    return draft.partition(APART)[0]
