"""Reading and writing the files of a job, with errors that tell what to do about them.

A job's script can write to the job's folder, and other processes (the API server, a supervisor, an operator's shell) read it
with their own rights. So no symbolic link below the folder is followed, nothing but a regular file is read, and no more of it
than a file of its kind can need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from rallypoint.backends.contract import BackendError
from rallypoint.wire import codec
from rallypoint.wire.bounds import LARGEST, excess
from rallypoint.wire.env import HOME

__all__ = [
    "FATAL",
    "FULL",
    "UnreadableError",
    "describe",
    "open_below",
    "pinned",
    "read_bytes",
    "read_optional",
    "read_owned",
    "telling",
]

T = TypeVar("T")

FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EROFS)

#: Trying again does not help before somebody has mended the machine.
FATAL = frozenset({*FULL, *_FORBIDDEN, errno.ENOENT, errno.ENOTDIR, errno.ENOEXEC})


#: `NONBLOCK`: to open a named pipe must not wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnreadableError(BackendError):
    """A file is there and does not hold what it should; reading it again does not help."""


def describe(error: OSError, path: Path) -> str:
    """Return one line: which path, what is wrong, what to do."""
    where = error.filename if isinstance(error.filename, str) else str(path)
    if error.errno in FULL:
        return f"{where}: no space left on the disk; free some space, or point {HOME} to another disk"
    if error.errno in _FORBIDDEN:
        return f"{where}: not writable for this user; change its owner or mode, or point {HOME} to another folder"
    if error.errno == errno.ENOTDIR:
        return f"{where}: a part of this path is not a folder; point {HOME} to a folder"
    return f"{where}: {error.strerror or error}"


@contextlib.contextmanager
def telling(path: Path, kind: type[BackendError] = BackendError) -> Iterator[None]:
    """Raise every `OSError` of the block as an error of `kind` in words."""
    try:
        yield
    except OSError as error:
        raise kind(describe(error, path)) from error


def open_below(root: Path, path: Path) -> BinaryIO:
    """Open a regular file below the folder `root` to read it; no link below `root` is followed, nor in the folder of a job.

    Raises `UnreadableError` for a link, a named pipe or a device, `OSError` as `open` does.
    """
    root = _trusted(root)
    *folders, name = path.relative_to(root).parts
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = _open_at(parent, folder, os.O_DIRECTORY, path)
            os.close(parent)
            parent = below
        return _regular(_open_at(parent, name, 0, path), path)
    finally:
        os.close(parent)


def _trusted(root: Path) -> Path:
    """Return the folder below which no link is followed: `root`, or above it the folder of all jobs.

    The job of a role is in the folder of its job, JOBS/JOB/jobs/JOB-ROLE, where a script can replace each folder by a link.
    """
    parts = root.parts
    for at in reversed(range(len(parts) - 2)):
        of_role = all(name.startswith(f"{parts[at + 1]}-") for name in parts[at + 3 : at + 4])
        if parts[at] == parts[at + 2] == "jobs" and of_role:
            return Path(*parts[: at + 1])
    return root


@contextlib.contextmanager
def pinned(folder: Path, root: Path) -> Iterator[Path]:
    """Open a folder below `root`, as `open_below` does, and yield a path that leads to it wherever its name leads to later.

    A script can replace the folder by a link between two uses of its name. Raises as `open_below` does.
    """
    start = _trusted(root)
    descriptor = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folder.relative_to(start).parts:
            below = _open_at(descriptor, name, os.O_DIRECTORY, folder)
            os.close(descriptor)
            descriptor = below
        path = f"/proc/self/fd/{descriptor}"
        try:
            yield Path(path)
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = error.filename.replace(path, str(folder), 1)
            raise
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file whose folder is no link.

    Raises as `open_below` does, and for a file with more JSON than a job can need.
    """
    return _read(path.parents[1], path)[0]


def read_owned(cls: type[T], root: Path, path: Path) -> tuple[T, int] | None:
    """Read a JSON file below `root` as a `cls`, and return its owner, too; None without a file. Raises as `read_optional`."""
    try:
        content, user = _read(root, path)
        return codec.loads(cls, content), user
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BackendError(describe(error, path)) from error
    except codec.WireError as error:
        raise UnreadableError(f"{path}: {error}") from error


def _read(root: Path, path: Path) -> tuple[bytes, int]:
    """Return the content and the owner of a file."""
    with open_below(root, path) as file:
        content, user = file.read(LARGEST + 1), os.fstat(file.fileno()).st_uid
    if limit := excess(content):
        raise UnreadableError(f"{path}: the file has more than {limit}, the largest allowed size")
    return content, user


def _open_at(parent: int, name: str, flags: int, path: Path) -> int:
    try:
        return os.open(name, _FLAGS | flags, dir_fd=parent)
    except OSError as error:
        link = error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and _is_link(parent, name))
        if link:
            raise UnreadableError(f"{path}: {name!r} is a symbolic link; expected a regular file without links") from error
        if error.errno == errno.ENXIO:
            raise UnreadableError(f"{path}: the path is a socket; expected a regular file") from error
        raise


def _is_link(parent: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _regular(descriptor: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError(f"{path}: the path is not a regular file; delete the file or choose another path")
    return os.fdopen(descriptor, "rb")


def read_optional(cls: type[T], path: Path) -> T | None:
    """Read a JSON file as a `cls`; None when there is none. Raises `UnreadableError` when it is not what it should be."""
    found = read_owned(cls, path.parents[1], path)
    return None if found is None else found[0]
