"""Small files that an agent reads, with errors that name the file; and the check that a folder can be written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

from rallypoint.agent.errors import ConfigError
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import private_folder

__all__ = ["read_json", "read_plan", "read_secret", "require_disk_space"]

T = TypeVar("T")

#: Bytes that must fit into a folder for a start to make sense.
_ROOM = 4096


def read_json(cls: type[T], path: Path) -> T | None:
    """Return the wire value in `path`, or None when there is no such file; raises `ConfigError` when it is none of ours."""
    try:
        text = _content(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from error
    try:
        return codec.loads(cls, text)
    except codec.WireError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_plan(path: Path) -> Plan:
    """Return the plan in `path`; raises `ConfigError` when there is none, or one that is not understood."""
    plan = read_json(Plan, path)
    if plan is None:
        raise ConfigError(f"--plan {path}: file not found")
    return plan


def read_secret(path: Path) -> str:
    """Return the secret in `path`; raises `ConfigError` when it is missing or empty."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--secret-file {path}: cannot read the file: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"--secret-file {path}: is empty; expected the job's secret")
    return secret


def _content(path: Path) -> bytes:
    """Return the content of a regular file: to wait for the writer of a named pipe would keep the agent from its own end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def require_disk_space(folder: Path) -> None:
    """Raise `ConfigError` when nothing can be written in `folder`, which is made if need be."""
    try:
        private_folder(folder)
        # The name is random, because other users may be able to create links in a log folder.
        with tempfile.TemporaryFile(dir=folder, prefix=".room-") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        full = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
        raise ConfigError(f"folder {folder}: cannot write: {full}") from error
