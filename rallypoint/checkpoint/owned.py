"""A folder in shared memory that does not outlive its owner for long: its lock tells whether the owner lives.

The owner removes its folder at its end. One that was killed cannot; the next that makes one removes what such owners left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OwnedFolder", "new_name", "own_folder", "shared_memory"]

_PREFIX, _LOCK = "rallypoint-snapshots-", "owner"

_SHARED = Path("/dev/shm")  # noqa: S108  shared memory is what is wanted


@dataclass(frozen=True)
class OwnedFolder:
    """A folder and the lock that says that its owner lives."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove it with all that is in it. Does nothing when it is gone."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def shared_memory(otherwise: Path) -> Path:
    """Return where folders are made: /dev/shm, or `otherwise` where that cannot be written."""
    return _SHARED if os.access(_SHARED, os.W_OK | os.X_OK) else otherwise


def new_name() -> str:
    """Return a name that no other folder has."""
    return f"{_PREFIX}{secrets.token_hex(8)}"


def own_folder(path: Path) -> OwnedFolder:
    """Make a folder, whose name is of `new_name`, and remove those beside it whose owners are gone. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    # Locked before it has the name that is looked for, or it could be taken for one that was left.
    hidden = path.with_name(f".{path.name}")
    hidden.mkdir(mode=0o700)
    lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return OwnedFolder(hidden.rename(path), lock)


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        try:
            # Anyone can make such a folder there, with a link or a pipe in it.
            if path.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or removed at this moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
