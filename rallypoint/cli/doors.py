"""What the commands reach outside through. The real doors import when they are opened, so that `--help` is quick."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["Doors"]


def _open_local(home: Path | None) -> Backend:
    from rallypoint.backends.registry import open_backend  # noqa: PLC0415

    return open_backend("local", home=home)


def _spawn_supervisor(name: str, home: Path | None) -> int:
    from rallypoint.backends.local.detach import spawn_supervisor  # noqa: PLC0415
    from rallypoint.backends.registry import default_home  # noqa: PLC0415

    return spawn_supervisor(home or default_home(), name)


@dataclass(frozen=True, kw_only=True)
class Doors:
    """How a command gets a backend, and how it leaves a supervisor behind.

    Attributes:
        open_backend: takes `--home`, None for $RALLYPOINT_HOME.
        spawn_supervisor: takes a job's name and `--home`; starts a process that supervises the job to its end, returns its pid.
    """

    open_backend: Callable[[Path | None], Backend] = _open_local
    spawn_supervisor: Callable[[str, Path | None], int] = _spawn_supervisor

    @contextlib.asynccontextmanager
    async def backend(self, home: Path | None) -> AsyncIterator[Backend]:
        """Have a backend while the context lasts."""
        opened = self.open_backend(home)
        try:
            yield opened
        finally:
            await opened.close()
