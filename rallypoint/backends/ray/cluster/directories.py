"""The directories of the jobs with several roles, through which their instances find each other: a process for each job.

A directory ends with the ledger. A ledger that was started again starts it again at the same port, which running instances
know; each instance repeats its own entry every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable
from rallypoint.backends.local.command_lines import mark
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.wire.env import JOB_MARK
from rallypoint.wire.python import run_code

__all__ = ["Directories", "is_open"]

log = logging.getLogger(__name__)

#: Name of the file of a job with the port of its directory, and seconds that a directory may take to start, and to end.
_FILE, _START, _ENDING = "directory.json", 30.0, 2.0

#: Has the kernel kill the process when the ledger ends (PR_SET_PDEATHSIG), also where that ended before.
_LAUNCH = (
    "import ctypes, os; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); parent = int(sys.argv.pop(1)); "
    "os.getppid() == parent or sys.exit(1); from rallypoint.agent.main import main; sys.exit(main())"
)


class Directories:
    """Those of one ledger, at its address. For one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[str, tuple[asyncio.subprocess.Process, int]] = {}
        self._opening = asyncio.Lock()

    async def url(self, uid: str, folder: JobFolder) -> str:
        """Return the URL of the directory of the job with this uid, started unless it runs. Raises `BackendError`."""
        async with self._opening:
            known = self._open.get(uid)
            if known is None or known[0].returncode is not None:
                self._open[uid] = await self._opened(uid, folder)
            port = self._open[uid][1]
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{port}"

    async def _opened(self, uid: str, folder: JobFolder) -> tuple[asyncio.subprocess.Process, int]:
        known = await in_thread(_port, folder)
        for port in (known, *(self._free_port() for _ in range(3))):
            if not port:
                continue
            process = await self._started(uid, folder, port) if await self._is_free(port) else None
            if process is not None:
                await in_thread(durable.write_text, str(folder.path / _FILE), json.dumps({"port": port}))
                return process, port
            log.warning("job=%s: port %d is in use; the role directory of this job tries another port", folder.path.name, port)
        raise BackendError(
            f"job {folder.path.name}: the role directory of this job did not start; see the log of the ledger actor"
        )

    async def _started(self, uid: str, folder: JobFolder, port: int) -> asyncio.subprocess.Process | None:
        """Return the process once it listens, None where it ends before."""
        process = await asyncio.create_subprocess_exec(
            *run_code(_LAUNCH, str(os.getpid()), "roles-directory"),
            *("--host", self._address, "--port", str(port)),
            *("--job", folder.path.name, "--secret-file", str(folder.roles_secret)),
            *(("--tls", str(folder.tls)) if await in_thread(folder.tls.is_dir) else ()),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, JOB_MARK: mark(uid, "directory")},
        )
        until = asyncio.get_running_loop().time() + _START
        while process.returncode is None and asyncio.get_running_loop().time() < until:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._address, port)
                writer.close()
                await asyncio.sleep(0)
                if process.returncode is None:
                    return process
            await asyncio.sleep(0.05)
        if process.returncode is None:
            process.kill()
        await process.wait()
        return None

    async def _is_free(self, port: int) -> bool:
        """Return whether a port can be used; the directory of a ledger that was killed may still be ending."""
        until = asyncio.get_running_loop().time() + _ENDING
        while True:
            with contextlib.suppress(OSError):
                self._bound(port)
                return True
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(0.05)

    def _free_port(self) -> int:
        return self._bound(0)

    def _bound(self, port: int) -> int:
        """Return the port that a socket got for a moment; raises `OSError`."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((self._address, port))
            return int(probe.getsockname()[1])

    async def close(self, uid: str) -> None:
        """End the directory of a job that is over or deleted; one that does not run is fine."""
        if (found := self._open.pop(uid, None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                found[0].kill()
            await found[0].wait()


def is_open(folder: JobFolder) -> bool:
    """Return whether a job had a directory once."""
    return (folder.path / _FILE).exists()


def _port(folder: JobFolder) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder.path / _FILE).read_text())["port"])
    return 0
