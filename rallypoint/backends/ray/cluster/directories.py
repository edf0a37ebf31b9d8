"""The directories of the jobs with several roles: where their instances find each other, one port of the ledger for each job.

A directory has its entries in memory, and each instance repeats its own every two seconds. A ledger that was started again
opens the same ports, which running instances know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

from rallypoint.agent.directory import DirectoryServer, RoleDirectory
from rallypoint.agent.errors import ConfigError
from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.threads import in_thread

__all__ = ["Directories", "is_open"]

log = logging.getLogger(__name__)

#: Name of the file of a job with the port of its directory.
_FILE = "directory.json"


class Directories:
    """Those of one ledger, at its address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[str, tuple[DirectoryServer, str]] = {}
        self._opening = asyncio.Lock()

    async def url(self, uid: str, folder: JobFolder) -> str:
        """Return the URL of the directory of the job with this uid, opened unless it is open. Raises `BackendError`."""
        async with self._opening:
            if uid not in self._open:
                self._open[uid] = await self._opened(folder)
            return self._open[uid][1]

    async def _opened(self, folder: JobFolder) -> tuple[DirectoryServer, str]:
        secret = (await in_thread(folder.roles_secret.read_text)).strip()
        server = DirectoryServer(RoleDirectory(), secret=secret)
        known = await in_thread(_port, folder)
        try:
            port = await server.start(self._address, known)
        except ConfigError as error:
            if not known:
                raise BackendError(f"cannot open the directory of roles: {error}") from error
            log.warning(
                "job=%s: port %d of its directory is taken; calls between roles fail: %s", folder.path.name, known, error
            )
            port = await server.start(self._address, 0)
        if port != known:
            await in_thread(durable.write_text, str(folder.path / _FILE), json.dumps({"port": port}))
        host = f"[{self._address}]" if ":" in self._address else self._address
        return server, f"http://{host}:{port}"

    async def close(self, uid: str) -> None:
        """Close the directory of a job that was deleted."""
        if (found := self._open.pop(uid, None)) is not None:
            await found[0].close()


def is_open(folder: JobFolder) -> bool:
    """Return whether a job had a directory once."""
    return (folder.path / _FILE).exists()


def _port(folder: JobFolder) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder.path / _FILE).read_text())["port"])
    return 0
