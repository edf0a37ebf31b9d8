"""Check that a folder is writable before anything starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rallypoint.agent.errors import ConfigError
from rallypoint.wire.private import private_folder

__all__ = ["require_disk_space"]

#: Bytes that must fit into a folder for a start to make sense.
_ROOM = 4096


def require_disk_space(folder: Path) -> None:
    """Raise `ConfigError` when nothing can be written in `folder`, which is made if need be."""
    probe = folder / f".room-{os.getpid()}"
    try:
        private_folder(folder)
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        full = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
        raise ConfigError(f"folder {folder}: cannot write: {full}") from error
    finally:
        if probe.exists():
            probe.unlink()
