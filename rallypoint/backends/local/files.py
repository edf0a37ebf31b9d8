"""Reading and writing the small files of a job, with errors that tell what to do about them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from rallypoint.backends.contract import BackendError
from rallypoint.wire import codec
from rallypoint.wire.env import HOME

__all__ = ["FATAL", "FULL", "UnreadableError", "describe", "read_optional", "telling"]

T = TypeVar("T")

FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EROFS)

#: Trying again does not help before somebody has mended the machine.
FATAL = frozenset({*FULL, *_FORBIDDEN, errno.ENOENT, errno.ENOTDIR, errno.ENOEXEC})


class UnreadableError(BackendError):
    """A file is there and does not hold what it should; reading it again does not help."""


def describe(error: OSError, path: Path) -> str:
    """Return one line: which path, what is wrong, what to do."""
    where = error.filename if isinstance(error.filename, str) else str(path)
    if error.errno in FULL:
        return f"{where}: the disk is full; free some space, or point {HOME} to another disk"
    if error.errno in _FORBIDDEN:
        return f"{where}: not writable for this user; change its owner or mode, or point {HOME} elsewhere"
    if error.errno == errno.ENOTDIR:
        return f"{where}: a part of this path is not a folder; point {HOME} to one"
    return f"{where}: {error.strerror or error}"


@contextlib.contextmanager
def telling(path: Path, kind: type[BackendError] = BackendError) -> Iterator[None]:
    """Raise every `OSError` of the block as an error of `kind` in words."""
    try:
        yield
    except OSError as error:
        raise kind(describe(error, path)) from error


def read_optional(cls: type[T], path: Path) -> T | None:
    """Read a JSON file as a `cls`; None when there is none. Raises `UnreadableError` when it is not what it should be."""
    try:
        return codec.loads(cls, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BackendError(describe(error, path)) from error
    except codec.WireError as error:
        raise UnreadableError(f"{path}: {error}") from error
