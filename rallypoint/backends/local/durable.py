"""Files that are either wholly as they were or wholly as they should be, also after a power failure; and locks.

A job's script can create any file in the job's folder, and supervisors and commands of other users write there, too. So a
file is opened for writing only if it is a regular file with one name: no symbolic or hard link is followed, and no process
waits for the reader of a named pipe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

__all__ = ["open_regular", "reserve", "sync_folder", "try_lock", "write_text"]

#: Errors of a path that is no regular file: a symbolic link, and a pipe without a reader or a socket.
_IRREGULAR = (errno.ELOOP, errno.ENXIO)


def open_regular(path: str, flags: int) -> int:
    """Open a file for writing, with mode 0600 where it is created; raises `OSError` for all but a regular file of one name."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "cannot open the file for writing: its path is a symbolic link; delete the link", path
            ) from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(
            errno.ENXIO,
            "cannot open the file for writing: it is not a regular file, or it has several hard links; delete the file",
            path,
        )
    return descriptor


def write_text(path: str, text: str) -> None:
    """Replace a file by `text` in one step; raises `OSError`, and then the old file is still there."""
    temporary = _temporary(path)
    descriptor = _open_temporary(temporary)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.truncate()  # it may have been reserved larger
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path) or ".")


def reserve(path: str, size: int) -> None:
    """Take `size` bytes of disk now for a later `write_text`, which then works on a full disk, too."""
    descriptor = _open_temporary(_temporary(path))
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make what was created, renamed or removed in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: str) -> int | None:
    """Return a descriptor that holds the lock of a file until it is closed, or None while somebody else holds it."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _open_temporary(path: str) -> int:
    """Open the file beside the one that is replaced; what is there and is no regular file is deleted."""
    try:
        return open_regular(path, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        if error.errno not in _IRREGULAR:
            raise
    os.unlink(path)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _temporary(path: str) -> str:
    return f"{path}.tmp"
