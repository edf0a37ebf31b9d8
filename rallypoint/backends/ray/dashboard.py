"""Requests to Ray's Jobs REST API and to the ledger of a namespace: plain HTTP, for one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

import aiohttp

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.access import Access, tls_context
from rallypoint.backends.ray.working_dir import package

__all__ = ["Cluster"]

log = logging.getLogger(__name__)

#: Seconds for one request, and to open a connection.
_TIMEOUT, _CONNECT = 30.0, 10.0

#: Seconds that a bootstrap job may take, and between two looks at it.
_BOOTSTRAP, _LOOK = 120.0, 0.2

#: What a head answers before an agent of a node has joined; how long that may last, and the pause between tries, in seconds.
_NO_AGENT, _AGENT, _PAUSE = "No available agent to submit job", 30.0, 1.0

#: Ray's words for a job that has ended, and for one that ended well.
_ENDED, _SUCCEEDED = ("SUCCEEDED", "FAILED", "STOPPED"), "SUCCEEDED"

#: Metadata of our Ray jobs.
_MARK = "rallypoint"

#: How many earlier Ray jobs are asked where the ledger is.
_LATEST = 3

_BROKEN = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class LedgerLostError(BackendError):
    """The ledger does not answer at its last address."""


class Cluster:
    """One cluster as `access` reaches it."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._tls = tls_context(access) if access.url.startswith("https") else None
        self._session: aiohttp.ClientSession | None = None
        self._ledger: tuple[str, str] | None = None
        self._finding = asyncio.Lock()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT), connector=aiohttp.TCPConnector(limit=64)
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    # --- the Jobs API -----------------------------------------------------------------------------------------------------

    async def version(self) -> dict[str, Any]:
        """Return what the dashboard says of itself; raises `BackendError`."""
        found: dict[str, Any] = await self._ask("GET", "/api/version")
        return found

    async def jobs(self) -> list[dict[str, Any]]:
        """Return all Ray jobs; raises `BackendError`."""
        found: list[dict[str, Any]] = await self._ask("GET", "/api/jobs/")
        return found

    async def _ask(self, method: str, path: str, body: Any = None, *, missing: Any = None, data: bytes | None = None) -> Any:
        """Return the JSON of an answer; `missing` for 404 where it is given."""
        where = f"{self.access.url}{path}"
        headers = {"Authorization": f"Bearer {self.access.token}"} if self.access.token else {}
        try:
            async with self._opened().request(
                method,
                where,
                json=body,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT, sock_connect=_CONNECT),
                allow_redirects=False,
                **({} if self._tls is None else {"ssl": self._tls}),
            ) as answer:
                text = await answer.text()
                if answer.status == 404 and missing is not None:
                    return missing
                if answer.status != 200:
                    raise BackendError(f"{method} {where}: {_refusal(answer.status, text)}")
                return json.loads(text) if text.strip().startswith(("{", "[", '"')) else text
        except _BROKEN as error:
            raise BackendError(f"cannot reach the Ray dashboard at {self.access.url}: {_words(error)}") from error
        except ValueError as error:
            raise BackendError(f"{method} {where}: the response is not JSON; expected the URL of a Ray dashboard") from error

    async def submit(self, uid: str) -> None:
        """Submit the Ray job that finds or creates the ledger; a second one of the same id is fine."""
        words = ["python", "-m", "rallypoint.backends.ray.cluster", "--namespace", self.access.namespace]
        if self.access.storage:
            words += ["--home", self.access.storage]
        body = {
            "entrypoint": shlex.join(words),
            "submission_id": uid,
            "metadata": {_MARK: self.access.namespace},
        }
        loop = asyncio.get_running_loop()
        until = loop.time() + _AGENT
        while True:
            try:
                await self._ask("POST", "/api/jobs/", body)
            except BackendError as error:
                if await self._ask("GET", f"/api/jobs/{uid}", missing={}):
                    return
                if _NO_AGENT not in str(error) or loop.time() >= until:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def upload(self, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
        """Return a runtime environment whose local `working_dir` was uploaded to the cluster."""
        found = dict(runtime_env)
        folder = str(found.get("working_dir") or "")
        if not folder or "://" in folder:
            return found
        name, content = await asyncio.to_thread(package, folder, tuple(found.get("excludes") or ()))
        path = f"/api/packages/gcs/{name}"
        if await self._ask("GET", path, missing="") == "":
            await self._ask("PUT", path, data=content)
        return {**found, "working_dir": f"gcs://{name}"}

    # --- the ledger -------------------------------------------------------------------------------------------------------

    async def call(self, method: str, *, job: str = "", timeout: float = _TIMEOUT, **given: Any) -> Any:
        """Call a method of the ledger, which is found or created first; raises the errors of `backends/contract.py`."""
        known = self._ledger or await self._find("")
        try:
            return await self._call(known, method, job, timeout, given)
        except LedgerLostError:
            known = await self._find(known[0])
        return await self._call(known, method, job, timeout, given)

    async def _call(self, ledger: tuple[str, str], method: str, job: str, timeout: float, given: Mapping[str, Any]) -> Any:
        url, key = ledger
        try:
            async with self._opened().post(
                f"{url}{calls.PATH}{method}",
                json=given,
                headers={"Authorization": f"Bearer {key}"},
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT),
                allow_redirects=False,
            ) as answer:
                found = json.loads(await answer.text())
                if answer.status == 401:
                    raise LedgerLostError(f"the process at the ledger's address is not the ledger: {url}")
        except (*_BROKEN, ValueError) as error:
            raise LedgerLostError(f"cannot reach the ledger at {url}: {_words(error)}") from error
        if "error" in found:
            raise calls.error_from(found["error"], name=job)
        return found.get("value")

    async def _find(self, lost: str, *, job: str = "") -> tuple[str, str]:
        """Return the address and the key of the ledger; `lost` is an address at which it does not answer."""
        async with self._finding:
            if self._ledger is not None and self._ledger[0] != lost:
                return self._ledger
            self._ledger = None
            for entry in await self._latest():
                found = await self._line(str(entry["submission_id"]))
                if found is not None and await self._answers(found):
                    self._ledger = found
                    return found
            self._ledger = await self.bootstrap(job or f"rallypoint-ledger-{secrets.token_hex(4)}")
            return self._ledger

    async def find(self, uid: str) -> None:
        """Submit the Ray job of a submission, and wait for it unless the ledger is known."""
        await self.submit(uid)
        if self._ledger is None:
            await self._find("", job=uid)

    async def _latest(self) -> list[dict[str, Any]]:
        own = [
            job
            for job in await self.jobs()
            if (job.get("metadata") or {}).get(_MARK) == self.access.namespace and job.get("status") == _SUCCEEDED
        ]
        return sorted(own, key=lambda job: -(job.get("start_time") or 0))[:_LATEST]

    async def _answers(self, ledger: tuple[str, str]) -> bool:
        with contextlib.suppress(BackendError):
            await self._call(ledger, "ping", "", _CONNECT, {})
            return True
        return False

    async def _line(self, submission: str) -> tuple[str, str] | None:
        text = str((await self._ask("GET", f"/api/jobs/{submission}/logs", missing={"logs": ""})).get("logs") or "")
        for line in text.splitlines():
            if line.startswith(calls.LINE):
                found = json.loads(line.removeprefix(calls.LINE))
                return str(found["url"]), str(found["key"])
        return None

    async def bootstrap(self, submission: str) -> tuple[str, str]:
        """Run the Ray job of this id to its end; return the address and the key of the ledger that it found or created."""
        await self.submit(submission)
        loop = asyncio.get_running_loop()
        until = loop.time() + _BOOTSTRAP
        while True:
            job = await self._ask("GET", f"/api/jobs/{submission}")
            status = str(job.get("status"))
            if status in _ENDED:
                break
            if loop.time() >= until:
                raise BackendError(f"Ray job {submission} did not end within {_BOOTSTRAP:g} s (status {status})")
            await asyncio.sleep(_LOOK)
        found = await self._line(submission)
        if found is None:
            text = str((await self._ask("GET", f"/api/jobs/{submission}/logs")).get("logs") or "")
            last = next((line for line in reversed(text.splitlines()) if line.strip()), str(job.get("message") or ""))
            raise BackendError(
                f"Ray job {submission} could not start the ledger ({status}): {last.strip()[:500]}; the nodes of the cluster "
                "need the package airflow-provider-rallypoint[agent,client]"
            )
        return found


def _refusal(status: int, text: str) -> str:
    if status in (401, 403):
        return f"the Ray dashboard refuses the token (HTTP {status}); set the token of the cluster"
    last = next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), "")
    return f"HTTP {status}: {last.strip()[:500]}"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
