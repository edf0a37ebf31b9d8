"""Folders and files for their owner alone.

A job's environment, output and snapshots are nobody else's business on a machine that several people use. What protects them is
the mode of the folders above; files get a mode of their own, too, for the case that they are moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["PRIVATE_FILE", "claim_folder", "open_own", "private_folder", "replace_file", "tighten"]

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


def claim_folder(root: Path, path: Path) -> None:
    """Create a folder below `root`, where other users may create folders, and its missing parents, with mode 0700.

    Raises `OSError` also if one of them is a link or belongs to another user, who could replace everything in it. A file
    system may give files another owner (NFS with `root_squash`), so the owner of a new folder counts as this user.
    """
    private_folder(root)
    folders, folder = [], root
    for name in path.relative_to(root).parts:
        folder /= name
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=PRIVATE_FOLDER)
        folders.append(folder)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "this is a link or a file, expected a folder", str(folder))
    ours = _owners_of_new(path)
    for folder in folders:
        _require_owner(folder, folder.lstat().st_uid, ours)


def open_own(path: Path) -> int:
    """Open a folder and return its descriptor; raises `OSError` also if it is a link or belongs to another user.

    Where others may rename a folder above it, another folder can be in its place since it was created. What is opened in the
    descriptor is in this one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in (os.geteuid(), 0):
            _require_owner(path, owner, _owners_of_new(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _owners_of_new(folder: Path) -> set[int]:
    """Return root and the owner that a new folder in this one has."""
    probe = Path(tempfile.mkdtemp(prefix=".owner-", dir=folder))
    owner = probe.lstat().st_uid
    probe.rmdir()
    return {owner, 0}


def _require_owner(folder: Path, owner: int, ours: set[int]) -> None:
    if owner not in ours:
        why = f"this folder belongs to user {owner}, who could replace the files in it; choose another folder"
        raise PermissionError(errno.EPERM, why, str(folder))


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
