"""Folders and files for their owner alone.

A job's environment, output and snapshots are nobody else's business on a machine that several people use. What protects them is
the mode of the folders above; files get a mode of their own, too, for the case that they are moved.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["PRIVATE_FILE", "private_folder", "replace_file", "tighten"]

#: Mode of a folder, and of a file.
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700; one that is there keeps its mode. Raises `OSError`."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        # Another process may create it, too.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=PRIVATE_FOLDER)
    path.mkdir(exist_ok=True)


def replace_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part. Raises `OSError`.

    `durable`: flush the file and its folder to the disk, so that the new content also survives a power failure.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def tighten(path: Path) -> None:
    """Set mode 0700 on a folder that an earlier version created; does nothing where there is none, or it is not ours."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077:
            path.chmod(PRIVATE_FOLDER)
