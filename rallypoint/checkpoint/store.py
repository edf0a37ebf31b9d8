"""Where snapshots are persisted: a folder that all nodes see, or what an fsspec URL names.

A checkpoint of either is there or not there. In a folder its parts are written beside it and the renaming is the last act; an
object store cannot rename, so there the manifest is, and whoever has none is no checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rallypoint.checkpoint.manifest import (
    Checkpoint,
    FileEntry,
    Manifest,
)

__all__ = ["APART", "BLOCK", "Store"]

#: Between the name of a draft and what tells it from another draft of the same checkpoint.
APART = "+"

#: Bytes that are read and written at once where the kernel cannot copy by itself.
BLOCK = 8 << 20


class Store(Protocol):
    """What persisting needs. A draft is a checkpoint that is not complete yet; two writers of one may work on two drafts."""

    def named(self) -> list[Checkpoint]:
        """Return all that bears a final name, newest first."""

    def complete(self) -> list[Manifest]:
        """Return the manifests of all complete checkpoints, newest first."""

    def begin(self, draft: str, size: int) -> None:
        """Make place for `size` bytes of a draft; raises `NoRoomError`."""

    def write(self, draft: str, file: str, source: int, size: int) -> None:
        """Write `size` bytes of the descriptor `source` as a file of a draft."""

    def note(self, draft: str, file: str, content: bytes) -> None:
        """Write a small file of a draft, whole or not at all."""

    def notes(self, draft: str) -> dict[str, bytes]:
        """Return the small files of a draft."""

    def describe(self, draft: str, files: Sequence[str]) -> dict[str, FileEntry]:
        """Return the entries of some files of a draft."""

    def publish(self, draft: str, name: str, manifest: Manifest) -> None:
        """Make a checkpoint complete; another draft of it may have been faster."""

    def discard(self, name: str) -> None:
        """Delete a complete checkpoint."""

    def fetched(self, checkpoint: Checkpoint, files: Sequence[str]) -> contextlib.AbstractContextManager[Path]:
        """Give a folder that holds `files` of a complete checkpoint, and perhaps more."""
