"""The directories of the jobs with several roles, through which their instances find each other: a process for each job.

A directory ends with the ledger. A ledger that was started again starts it again at the same port, which running instances
know; each instance repeats its own entry every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import socket
from dataclasses import dataclass

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable
from rallypoint.backends.local.command_lines import mark
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.wire.env import JOB_MARK
from rallypoint.wire.health_check import DIRECTORY, has_proven
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.python import run_code
from rallypoint.wire.roles import directory_token

__all__ = ["Directories", "is_open"]

log = logging.getLogger(__name__)

#: Name of the file of a job with the port of its directory, and seconds that a directory may take to start, to end, and to
#: answer one request.
_FILE, _START, _ENDING, _ANSWER = "directory.json", 30.0, 2.0, 1.0

#: Has the kernel kill the process when the ledger ends (PR_SET_PDEATHSIG), also where that ended before.
_LAUNCH = (
    "import ctypes, os; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); parent = int(sys.argv.pop(1)); "
    "os.getppid() == parent or sys.exit(1); from rallypoint.agent.main import main; sys.exit(main())"
)


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A directory that was started. The socket stays open here, so that no other program gets its port after its end."""

    process: asyncio.subprocess.Process
    listener: socket.socket


class Directories:
    """Those of one ledger, at its address. For one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[str, _Open] = {}
        self._opening = asyncio.Lock()

    async def url(self, uid: str, folder: JobFolder) -> str:
        """Return the URL of the directory of the job with this uid, started unless it runs. Raises `BackendError`."""
        async with self._opening:
            known = self._open.get(uid)
            if known is None or known.process.returncode is not None:
                listener = await self._listener(folder) if known is None else known.listener
                self._open[uid] = _Open(process=await self._launched(uid, folder, listener), listener=listener)
                await self._require_answer(self._open[uid], folder)
            port = self._open[uid].listener.getsockname()[1]
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{port}"

    async def _listener(self, folder: JobFolder) -> socket.socket:
        """Return a socket that listens at the port that running instances know, or at another one. Raises `BackendError`."""
        known = await in_thread(_port, folder)
        listener = await self._listening_at(known) if known else None
        if listener is None:
            if known:
                log.warning(
                    "job=%s: port %d is in use; the role directory of this job uses another port", folder.path.name, known
                )
            try:
                listener = self._listening(0)
            except OSError as error:
                raise BackendError(
                    f"job {folder.path.name}: cannot open a port for the role directory of this job: {error}"
                ) from error
        await in_thread(durable.write_text, str(folder.path / _FILE), json.dumps({"port": listener.getsockname()[1]}))
        return listener

    async def _listening_at(self, port: int) -> socket.socket | None:
        """Return a socket at a port, None if it is in use; the directory of a ledger that was killed may still be ending."""
        until = asyncio.get_running_loop().time() + _ENDING
        while True:
            with contextlib.suppress(OSError):
                return self._listening(port)
            if asyncio.get_running_loop().time() >= until:
                return None
            await asyncio.sleep(0.05)

    def _listening(self, port: int) -> socket.socket:
        """Return a socket that listens, which other users cannot bind from then on; raises `OSError`."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return socket.create_server((self._address, port), family=family)

    async def _launched(self, uid: str, folder: JobFolder, listener: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *run_code(_LAUNCH, str(os.getpid()), "roles-directory", "--listener", str(listener.fileno())),
            *("--job", folder.path.name, "--secret-file", str(folder.roles_secret)),
            *(("--tls", str(folder.tls)) if await in_thread(folder.tls.is_dir) else ()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            env={**os.environ, JOB_MARK: mark(uid, "directory")},
        )

    async def _require_answer(self, opened: _Open, folder: JobFolder) -> None:
        """Return once the process answers at its socket; raises `BackendError` if it ends before, or takes too long."""
        process, until = opened.process, asyncio.get_running_loop().time() + _START
        while process.returncode is None and asyncio.get_running_loop().time() < until:
            if await in_thread(_answers, opened.listener, folder):
                return
            await asyncio.sleep(0.05)
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise BackendError(
            f"job {folder.path.name}: the role directory of this job did not start; see the log of the ledger actor"
        )

    async def close(self, uid: str) -> None:
        """End the directory of a job that is over or deleted; one that does not run is fine."""
        if (found := self._open.pop(uid, None)) is not None:
            found.listener.close()
            with contextlib.suppress(ProcessLookupError):
                found.process.kill()
            await found.process.wait()


def _answers(listener: socket.socket, folder: JobFolder) -> bool:
    """Return whether the process serves the socket: with its proof, or with TLS by an error for a request without TLS."""
    host, port = listener.getsockname()[:2]
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        if not folder.tls.is_dir():
            return has_proven(connection, DIRECTORY, directory_token(folder.roles_secret.read_bytes().strip()))
        connection.request("GET", HEALTH_PATH)
        return connection.getresponse().status == http.client.BAD_REQUEST
    return False


def is_open(folder: JobFolder) -> bool:
    """Return whether a job had a directory once."""
    return (folder.path / _FILE).exists()


def _port(folder: JobFolder) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder.path / _FILE).read_text())["port"])
    return 0
