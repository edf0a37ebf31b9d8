"""Backends by the word that users give. The environment is read here and nowhere below."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rallypoint.backends.contract import Backend, BackendError
from rallypoint.wire.env import HOME

__all__ = ["default_home", "open_backend"]


def default_home() -> Path:
    """Return `$RALLYPOINT_HOME`, or else `~/.rallypoint`, as an absolute path."""
    return Path(os.environ.get(HOME) or "~/.rallypoint").expanduser().absolute()


def open_backend(kind: str = "local", *, home: Path | None = None) -> Backend:
    """Return the backend of a kind; `home` is where the local one keeps its jobs. Raises `BackendError` for an unknown kind."""
    if kind not in _KINDS:
        raise BackendError(f"backend: {kind!r} is not one; choose one of {', '.join(sorted(_KINDS))}")
    return _KINDS[kind](home or default_home())


def _local(home: Path) -> Backend:
    from rallypoint.backends.local.backend import LocalBackend  # noqa: PLC0415  what is not asked for is not imported

    return LocalBackend(home.expanduser().absolute())


_KINDS: dict[str, Callable[[Path], Backend]] = {"local": _local}
