"""Files that are either wholly as they were or wholly as they should be, also after a power failure; and locks."""

from __future__ import annotations

import fcntl
import os

__all__ = ["reserve", "sync_folder", "try_lock", "write_text"]


def write_text(path: str, text: str, *, mode: int = 0o600) -> None:
    """Replace a file by `text` in one step; raises `OSError`, and then the old file is still there."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, mode)
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
    descriptor = os.open(_temporary(path), os.O_WRONLY | os.O_CREAT, 0o600)
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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _temporary(path: str) -> str:
    return f"{path}.tmp"
