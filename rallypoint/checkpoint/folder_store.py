"""Snapshots persisted in a folder that all nodes see: drafts beside the checkpoints, and a renaming as the last act."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rallypoint.checkpoint import folder
from rallypoint.checkpoint.errors import CheckpointError, NoRoomError
from rallypoint.checkpoint.manifest import MANIFEST, Checkpoint, FileEntry, Manifest, describe, parse_name
from rallypoint.checkpoint.store import APART, BLOCK
from rallypoint.wire.codec import dumps

__all__ = ["SAVING", "FolderStore"]

#: Ends the name of a draft. Not `.tmp`: a newer round sweeps those away.
SAVING = ".saving"


class FolderStore:
    """A folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def named(self) -> list[Checkpoint]:
        return folder.listing(self.path)

    def complete(self) -> list[Manifest]:
        return folder.complete(self.path)

    def begin(self, draft: str, size: int) -> None:
        unfinished = self._unfinished(draft)
        try:
            unfinished.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot write to the folder: {error.strerror}") from error
        free = shutil.disk_usage(unfinished).free
        if free < size:
            missing = size - free
            raise NoRoomError(
                f"{self.path}: not enough space for a snapshot of {size:,} bytes: {free:,} free, {missing:,} missing"
            )

    def write(self, draft: str, file: str, source: int, size: int) -> None:
        target = os.open(self._unfinished(draft) / file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            done = 0
            while done < size:
                sent = os.sendfile(target, source, done, min(size - done, BLOCK))
                if sent == 0:
                    raise CheckpointError(f"{draft}: incomplete snapshot: only {done} of {size} bytes could be read")
                done += sent
            os.fsync(target)
        finally:
            os.close(target)

    def note(self, draft: str, file: str, content: bytes) -> None:
        path = self._unfinished(draft) / file
        temporary = path.with_name(f"{file}.{os.getpid()}.new")
        folder.write_file(temporary, content)
        temporary.rename(path)

    def notes(self, draft: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._unfinished(draft).glob("*.json")}

    def describe(self, draft: str, files: Sequence[str]) -> dict[str, FileEntry]:
        found = describe(self._unfinished(draft))
        return {file: found[file] for file in files}

    def publish(self, draft: str, name: str, manifest: Manifest) -> None:
        unfinished, final = self._unfinished(draft), self.path / name
        folder.write_file(unfinished / MANIFEST, dumps(manifest, indent=1).encode())
        try:
            folder.rename(unfinished, final)
        except OSError:
            if not final.is_dir():
                raise
            folder.remove(unfinished)
        self._sweep(manifest)

    def discard(self, name: str) -> None:
        found = parse_name(self.path / name)
        if found is not None and found.path.is_dir():
            folder.discard(found)

    @contextlib.contextmanager
    def fetched(self, checkpoint: Checkpoint, files: Sequence[str]) -> Iterator[Path]:
        yield checkpoint.path

    def _sweep(self, complete: Manifest) -> None:
        """Delete drafts of what is older than a complete one: whoever left them behind is gone, or too late."""
        for path in self.path.glob(f"*{SAVING}"):
            found = parse_name(path.with_name(path.name.removesuffix(SAVING).partition(APART)[0]))
            if found is not None and (found.fence, found.step) <= (complete.fence, complete.step):
                folder.remove(path)

    def _unfinished(self, draft: str) -> Path:
        return self.path / f"{draft}{SAVING}"
