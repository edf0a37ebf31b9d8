"""Requests to Ray's Jobs REST API and to the ledger of a namespace: plain HTTP, for one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.access import LEDGER, Access, read_runtime_env, tls_context
from rallypoint.backends.ray.ledger_client import (
    BROKEN,
    CONNECT,
    LARGEST_ANSWER,
    LedgerClient,
    LedgerLostError,
    new_session,
    read_answer,
    words,
)
from rallypoint.backends.ray.line import LINE
from rallypoint.backends.ray.working_dir import local_folder, package
from rallypoint.kube.http import LimitError
from rallypoint.wire import sanitize
from rallypoint.wire.bounds import has_more_values
from rallypoint.wire.python import run_module

__all__ = ["Cluster", "NoLedgerError"]

log = logging.getLogger(__name__)

#: Seconds for one request, and connections to the dashboard.
_TIMEOUT, _CONNECTIONS = 30.0, 64

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

#: The last start time in milliseconds since the epoch: that of the year 2286.
_LAST = 10**13

#: JSON values of an answer of dashboard or ledger: any program on the cluster can make it as large as it likes.
_VALUES = 1 << 20

#: Characters of the longest line that announces a ledger, and of the end of a text that an error shows a line of.
_LONGEST_LINE, _END = 4096, 1 << 16

#: In Airflow's API server, a search for the ledger that failed is repeated after so many times the seconds that it took, and
#: after so many seconds at the latest: an answer of any program on the cluster may take seconds to parse.
_REST, _LONGEST_REST = 10.0, 60.0

#: Ids of Ray jobs and keys of ledgers that are used in requests.
_SUBMISSION, _KEY = re.compile(r"[A-Za-z0-9_.-]{1,200}", re.ASCII), re.compile(r"[A-Za-z0-9_-]{16,200}", re.ASCII)


class NoLedgerError(BackendError):
    """No job was submitted to the namespace, and a call that only reads starts no ledger."""


class Cluster:
    """One cluster as `access` reaches it."""

    def __init__(self, access: Access) -> None:
        self.access = access
        #: Whether a ledger was found once: from then on every call starts a ledger where none answers.
        self._found = False
        self._tls = tls_context(access) if access.url.startswith("https") else None
        self._session: aiohttp.ClientSession | None = None
        self._ledger: LedgerClient | None = None
        self._finding = asyncio.Lock()
        self._failure: tuple[type[BackendError], str] = (BackendError, "")
        self._rest_until = 0.0

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = new_session(connections=_CONNECTIONS)
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        if self._ledger is not None:
            await self._ledger.close()
        self._session = self._ledger = None

    # --- the Jobs API -----------------------------------------------------------------------------------------------------

    async def version(self) -> dict[str, Any]:
        """Return what the dashboard says of itself; raises `BackendError`."""
        return await self._object("GET", "/api/version")

    async def jobs(self) -> list[dict[str, Any]]:
        """Return all Ray jobs; raises `BackendError`."""
        found = await self._ask("GET", "/api/jobs/")
        if not isinstance(found, list):
            raise BackendError(
                f"GET {self.access.url}/api/jobs/: the response is no list; check that the address is that of a Ray dashboard"
            )
        return [job for job in found if isinstance(job, dict)]

    async def _object(self, method: str, path: str, *, missing: Any = None) -> dict[str, Any]:
        found = await self._ask(method, path, missing=missing)
        if not isinstance(found, dict):
            raise BackendError(
                f"{method} {self.access.url}{path}: the response is no JSON object; check that the address is that of a "
                "Ray dashboard"
            )
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
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT, sock_connect=CONNECT),
                allow_redirects=False,
                **({} if self._tls is None else {"ssl": self._tls}),
            ) as answer:
                content = await read_answer(answer, LARGEST_ANSWER)
                if answer.status == 404 and missing is not None:
                    return missing
                if answer.status != 200:
                    raise BackendError(f"{method} {where}: {_refusal(answer.status, content[-_END:].decode(errors='replace'))}")
                if content.strip().startswith((b"{", b"[", b'"')):
                    return await asyncio.to_thread(parse_answer, content)
                return content.decode(errors="replace")
        except LimitError as error:
            raise BackendError(f"{method} {where}: {error}") from error
        except BROKEN as error:
            raise BackendError(f"cannot reach the Ray dashboard at {self.access.url}: {words(error)}") from error
        except ValueError as error:
            raise BackendError(
                f"{method} {where}: the response is not JSON; check that the address is that of a Ray dashboard"
            ) from error

    async def submit(self, uid: str) -> None:
        """Submit the Ray job that finds or creates the ledger; a second one of the same id is fine."""
        if self.access.read_only:
            raise BackendError(
                f"no ledger with job records runs in namespace {self.access.namespace!r} of the Ray cluster; the next "
                "submission of a job starts the ledger"
            )
        storage = ("--home", self.access.storage) if self.access.storage else ()
        where = ("--namespace", self.access.namespace, *storage)
        words = run_module("rallypoint.backends.ray.cluster", *where, python=("python",))
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
                if await self._object("GET", f"/api/jobs/{uid}", missing={}):
                    return
                if _NO_AGENT not in str(error) or loop.time() >= until:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def upload(self) -> dict[str, Any]:
        """Return the runtime environment of `access` once its local `working_dir` was uploaded to the cluster.

        No other: the path of a folder to upload must never come from the cluster.
        """
        found = read_runtime_env(self.access.runtime_env)
        folder = local_folder(found)
        if not folder:
            return found
        name, content = await asyncio.to_thread(package, folder, tuple(found.get("excludes") or ()))
        path = f"/api/packages/gcs/{name}"
        if await self._ask("GET", path, missing="") == "":
            await self._ask("PUT", path, data=content)
        return {**found, "working_dir": f"gcs://{name}"}

    # --- the ledger -------------------------------------------------------------------------------------------------------

    async def call(self, method: str, *, job: str = "", timeout: float = _TIMEOUT, reading: bool = False, **given: Any) -> Any:
        """Call a method of the ledger, which is found or created first; raises the errors of `backends/contract.py`.

        With `reading`, raises `NoLedgerError` instead of starting a ledger in a namespace without a submission.
        """
        known = self._ledger or await self._find(None, reading=reading)
        try:
            return await self._call(known, method, job, timeout, given)
        except LedgerLostError:
            known = await self._find(known)
        return await self._call(known, method, job, timeout, given)

    async def _call(self, ledger: LedgerClient, method: str, job: str, timeout: float, given: Mapping[str, Any]) -> Any:
        # In a thread: a record of megabytes takes long, and other tasks share the event loop.
        body = await asyncio.to_thread(lambda: json.dumps(given).encode())
        content = await ledger.post(method, body, timeout=timeout)
        try:
            found = await asyncio.to_thread(parse_answer, content)
        except (LimitError, ValueError) as error:
            raise LedgerLostError(f"cannot reach the ledger at {ledger.url}: {words(error)}") from error
        if not isinstance(found, dict):
            raise LedgerLostError(f"the process at the ledger's address is not the ledger: {ledger.url}")
        if "error" in found:
            raise calls.error_from(found["error"], name=job)
        return found.get("value")

    async def _find(self, lost: LedgerClient | None, *, job: str = "", reading: bool = False) -> LedgerClient:
        """Return the ledger; `lost` is one that does not answer."""
        async with self._finding:
            if self._ledger is not None and self._ledger is not lost:
                return self._ledger
            loop = asyncio.get_running_loop()
            begun = loop.time()
            if begun < self._rest_until:
                kind, text = self._failure
                raise kind(text)
            try:
                return await self._search(job, reading=reading)
            except (BackendError, asyncio.CancelledError) as error:
                if self.access.read_only:
                    silent = f"the Ray dashboard at {self.access.url} did not answer in time"
                    self._failure = (type(error), str(error)) if isinstance(error, BackendError) else (BackendError, silent)
                    self._rest_until = loop.time() + min(_REST * (loop.time() - begun), _LONGEST_REST)
                raise

    async def _search(self, job: str, *, reading: bool) -> LedgerClient:
        if self._ledger is not None:
            lost, self._ledger = self._ledger, None
            await lost.close()
        own = await self._latest()
        for submission in own:
            place = await self._line(submission)
            found = None if place is None else await _proven(LedgerClient(*place))
            if found is not None:
                self._ledger, self._found = found, True
                return found
        if reading and not own and not self._found and not await self._lives():
            raise NoLedgerError(f"no job was submitted to namespace {self.access.namespace!r} of the Ray cluster")
        self._ledger = LedgerClient(*await self.bootstrap(job or f"rallypoint-ledger-{secrets.token_hex(4)}"))
        self._found = True
        return self._ledger

    async def find(self, uid: str) -> None:
        """Submit the Ray job of a submission, and wait for it unless the ledger is known."""
        await self.submit(uid)
        if self._ledger is None:
            await self._find(None, job=uid)

    async def _latest(self) -> list[str]:
        """Return the ids of the last Ray jobs that found or created a ledger; another program can submit one that says so."""
        # In a thread: any program on the cluster can answer with 100,000 jobs.
        return await asyncio.to_thread(latest, await self.jobs(), self.access.namespace)

    async def _lives(self) -> bool:
        """Return whether the namespace has a ledger: users can delete the Ray jobs that told where it is."""
        query = urlencode([("detail", "true"), ("filter_keys", "name"), ("filter_predicates", "="), ("filter_values", LEDGER)])
        found = await self._object("GET", f"/api/v0/actors?{query}", missing={})
        try:
            actors = [(actor["ray_namespace"], actor["state"]) for actor in found["data"]["result"]["result"]]
        except (KeyError, TypeError):
            return False
        return (self.access.namespace, "ALIVE") in actors

    async def _line(self, submission: str) -> tuple[str, str] | None:
        """Return the address and the key in the log of a Ray job, None where it has none that may be used."""
        line = announced(await self._log(submission, missing={"logs": ""}))
        return read_line(line, dashboard=self.access.url) if line else None

    async def _log(self, submission: str, *, missing: Any = None) -> str:
        """Return the log of a Ray job, "" for one that is no text: as text, a list of a million numbers takes long."""
        found = (await self._object("GET", f"/api/jobs/{submission}/logs", missing=missing)).get("logs")
        return found if isinstance(found, str) else ""

    async def bootstrap(self, submission: str) -> tuple[str, str]:
        """Run the Ray job of this id to its end; return the address and the key of the ledger that it found or created."""
        await self.submit(submission)
        loop = asyncio.get_running_loop()
        until = loop.time() + _BOOTSTRAP
        while True:
            job = await self._object("GET", f"/api/jobs/{submission}")
            status = str(job.get("status"))
            if status in _ENDED:
                break
            if loop.time() >= until:
                raise BackendError(f"Ray job {submission} did not end within {_BOOTSTRAP:g} s (status {status})")
            await asyncio.sleep(_LOOK)
        found = await self._line(submission)
        if found is None:
            text = (await self._log(submission))[-_END:]
            last = next((line for line in reversed(text.splitlines()) if line.strip()), str(job.get("message") or ""))
            reason = last.strip()[:500]
            raise BackendError(
                f"Ray job {submission} could not start the ledger ({status}): {reason}; the nodes of the cluster "
                "need the package airflow-provider-rallypoint[agent,client]"
            )
        return found


async def _proven(ledger: LedgerClient) -> LedgerClient | None:
    """Return a ledger that has proven that it has its key, None for another program and where none answers."""
    try:
        await ledger.prove()
    except LedgerLostError:
        await ledger.close()
        return None
    return ledger


def parse_answer(content: bytes) -> Any:
    """Return the JSON value of an answer; raises `LimitError` and `ValueError`."""
    if has_more_values(content, _VALUES):
        raise LimitError(f"the HTTP response has more than {_VALUES} JSON values")
    return sanitize.parse(content)


def latest(jobs: Iterable[Mapping[str, Any]], namespace: str) -> list[str]:
    """Return the ids of the last Ray jobs of a namespace that found or created a ledger."""
    own = [
        (_start_time(job), job["submission_id"])
        for job in jobs
        if isinstance(job.get("metadata"), dict)
        and job["metadata"].get(_MARK) == namespace
        and job.get("status") == _SUCCEEDED
        and isinstance(job.get("submission_id"), str)
        and _SUBMISSION.fullmatch(job["submission_id"])
    ]
    return [submission for _, submission in sorted(own, key=lambda one: -one[0])[:_LATEST]]


def announced(log: str) -> str:
    """Return the first line of a log that announces a ledger, "" if it has none.

    Any program on the cluster can write a log with millions of lines, and to split it would stop the event loop.
    """
    begin = 0 if log.startswith(LINE) else log.find(f"\n{LINE}") + 1
    return log[begin : begin + _LONGEST_LINE].partition("\n")[0] if log.startswith(LINE, begin) else ""


def read_line(line: str, *, dashboard: str) -> tuple[str, str] | None:
    """Return the address and the key of a ledger from the line that tells them; None for a line that no ledger has written.

    Any program on the cluster can write such a line, and Airflow's API server sends a request to its address.
    """
    try:
        found = json.loads(line.removeprefix(LINE))
        url, key = str(found["url"]), str(found["key"])
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    shown = f"[{host}]" if ":" in host else host
    if port is None or url != f"http://{shown}:{port}" or not _KEY.fullmatch(key) or not _is_node(host, dashboard):
        return None
    return url, key


def _is_node(host: str, dashboard: str) -> bool:
    """Return whether a ledger may be at a host: at an address of a node, or where the dashboard is."""
    own = urlsplit(dashboard).hostname or ""
    if host == own:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # a ledger has an address, not a name
    if address.is_loopback:
        return own == "localhost" or _is_loopback(own)
    return not (address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _start_time(job: Mapping[str, Any]) -> float:
    began = job.get("start_time")
    return float(began) if isinstance(began, (int, float)) and 0 <= began <= _LAST else 0.0


def _refusal(status: int, text: str) -> str:
    if status in (401, 403):
        return f"the Ray dashboard refuses the token (HTTP {status}); set the token of the cluster"
    last = next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), "")
    return f"HTTP {status}: {last.strip()[:500]}"
