"""Addresses of Unix sockets in folders whose paths are longer than the 107 bytes that the kernel allows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["reachable"]

_LONGEST = 107


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield an address of the socket `path` that is short enough to bind or connect to; raises `OSError` for no folder."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
