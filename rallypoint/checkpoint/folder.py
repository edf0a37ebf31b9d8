"""The folder of checkpoints as one process changes it: each change is durable when the function returns."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from rallypoint.checkpoint.errors import DamagedCheckpointError
from rallypoint.checkpoint.manifest import (
    MANIFEST,
    TEMPORARY,
    Checkpoint,
    Manifest,
    newest_first,
    parse_name,
    surplus,
    verify,
)
from rallypoint.wire.codec import dumps
from rallypoint.wire.fence import Fence

__all__ = ["complete", "discard", "listing", "newest", "publish", "remove", "rename", "retain", "sweep", "write_file"]

_log = logging.getLogger(__name__)


def listing(folder: Path) -> list[Checkpoint]:
    """Return every folder with a final name, newest first; none when `folder` does not exist."""
    return newest_first(folder.iterdir()) if folder.is_dir() else []


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None."""
    return next((checkpoint for checkpoint in listing(folder) if _verified(checkpoint) is not None), None)


def complete(folder: Path) -> list[Manifest]:
    """Return the manifests of all complete checkpoints, newest first."""
    return [manifest for checkpoint in listing(folder) if (manifest := _verified(checkpoint)) is not None]


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish(temporary: Path, manifest: Manifest) -> Path:
    """Turn a temporary folder whose files are written into a complete checkpoint; the renaming is the last act."""
    write_file(temporary / MANIFEST, dumps(manifest, indent=1).encode())
    return rename(temporary, temporary.with_name(temporary.name.removesuffix(TEMPORARY)))


def rename(temporary: Path, final: Path) -> Path:
    """Give a folder whose files are written its final name; raises `OSError`, also when somebody else has that name already."""
    _sync(temporary)
    temporary.rename(final)
    _sync(final.parent)
    return final


def discard(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint; it loses its final name first, so that a half deleted one is never taken for a complete one.

    Raises `OSError` when even that cannot be done.
    """
    doomed = checkpoint.path.with_name(checkpoint.path.name + TEMPORARY)
    checkpoint.path.rename(doomed)
    remove(doomed)


def retain(folder: Path, keep: int) -> None:
    """Delete the checkpoints that are older than the `keep` newest complete ones; what is gone already is no error."""
    ordered = listing(folder)
    good = [checkpoint for checkpoint in ordered if _verified(checkpoint) is not None]
    for checkpoint in surplus(ordered, good, keep):
        try:
            discard(checkpoint)
        except FileNotFoundError as error:
            _log.debug("an old checkpoint was already deleted by another process: %s", error)


def sweep(folder: Path, below: Fence) -> None:
    """Delete what saves of fences lower than `below` left behind unfinished."""
    for path in folder.glob(f"*{TEMPORARY}"):
        unfinished = parse_name(path.with_name(path.name.removesuffix(TEMPORARY)))
        if unfinished is not None and unfinished.fence < below:
            remove(path)


def remove(path: Path) -> None:
    """Delete a temporary folder if it is there; what cannot be deleted is logged, since it harms nobody but the disk."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("cannot delete a temporary checkpoint folder: %s; the folder stays on the disk", error)


def _verified(checkpoint: Checkpoint) -> Manifest | None:
    try:
        return verify(checkpoint)
    except DamagedCheckpointError as error:
        _log.warning("skipping a damaged checkpoint: %s", error)
        return None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
