"""The directory of a job: which process is which instance, and where it listens.

Two implementations: a folder, for instances that share one machine (`file:///folder`), and a small HTTP server
(`http://host:port`), for instances in pods. In both, the entry of a newer life of an instance replaces that of an older one,
and an older one never replaces a newer one.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from rallypoint.training.roles.context import Settings
from rallypoint.training.roles.errors import RolesError
from rallypoint.training.roles.secure import client_context
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.health_check import DIRECTORY, has_proven
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import ENTRIES_PATH
from rallypoint.wire.private import PRIVATE_FILE, private_folder
from rallypoint.wire.roles import ENTRY_LIMIT, RoleEntry, directory_token, read_entry
from rallypoint.wire.tls import peer_name

__all__ = ["Directory", "FolderDirectory", "HttpDirectory", "open_directory"]

log = logging.getLogger("rallypoint.roles")

#: Seconds that a request to the HTTP server may take, and how often it is repeated until then.
_REQUEST_TIME = 5.0

#: Maximum size of the HTTP server's answer, in bytes.
_ANSWER_LIMIT = 64 << 20


class Directory(Protocol):
    """Entries of the instances of a job; all methods are safe in any thread.

    Attributes:
        repeat: seconds after which an unchanged entry must be announced again; None if it stays.
    """

    repeat: float | None

    def announce(self, entry: RoleEntry) -> bool:
        """Store an entry; return False if a newer life of the instance is already entered. Raises `OSError`."""

    def find(self, name: str) -> RoleEntry | None:
        """Return the entry with a name (`rallypoint.wire.roles.entry_name`); None if there is none. Raises `OSError`."""

    def entries(self) -> dict[str, RoleEntry]:
        """Return all entries by name. Raises `OSError`."""


def open_directory(settings: Settings) -> Directory:
    """Return the directory that the environment names; raises `RolesError`."""
    parts = urlsplit(settings.url)
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return FolderDirectory(Path(parts.path))
    if parts.scheme == "http" and parts.hostname and parts.port:
        return HttpDirectory(settings, parts.hostname, parts.port)
    raise RolesError(f"RALLYPOINT_ROLES_URL: {settings.url!r} is not allowed; expected file:///FOLDER or http://HOST:PORT")


class FolderDirectory:
    """A folder with one file for each entry, for processes of one user on one machine."""

    repeat: float | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def announce(self, entry: RoleEntry) -> bool:
        """Write the file of an entry atomically."""
        private_folder(self._folder)
        path = self._path(entry.name)
        with self._locked():
            known = self._read(path)
            if known is not None and known.life > entry.life:
                return False
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(codec.dumps(entry))
            fresh.replace(path)
        return True

    def find(self, name: str) -> RoleEntry | None:
        """Read the file of an entry."""
        return self._read(self._path(name))

    def entries(self) -> dict[str, RoleEntry]:
        """Read all files."""
        found = (self._read(path) for path in sorted(self._folder.glob("*.json")))
        return {entry.name: entry for entry in found if entry is not None}

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _read(path: Path) -> RoleEntry | None:
        """Return an entry; an invalid file counts as missing, because its writer replaces it."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            try:
                return read_entry(file.read(ENTRY_LIMIT + 1))
            except (WireError, OSError) as error:
                log.warning(
                    "this process ignored the entry %s of the role directory, because the entry is invalid: %s", path, error
                )
                return None


class HttpDirectory:
    """Client of `rallypoint-agent roles-directory`. The server keeps entries in memory, so each process repeats its own."""

    repeat: float | None = 2.0

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        self._settings, self._address = settings, (host, port)

    def announce(self, entry: RoleEntry) -> bool:
        """Send an entry."""
        status, _ = self._request("PUT", f"{ENTRIES_PATH}/{entry.name}", codec.dumps(entry).encode())
        return status != http.client.CONFLICT

    def find(self, name: str) -> RoleEntry | None:
        """Request one entry."""
        status, text = self._request("GET", f"{ENTRIES_PATH}/{name}")
        return None if status == http.client.NOT_FOUND else _entry(text)

    def entries(self) -> dict[str, RoleEntry]:
        """Request all entries."""
        _, text = self._request("GET", ENTRIES_PATH)
        try:
            listed = json.loads(text)
            found = [read_entry(json.dumps(one)) for one in listed["entries"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise OSError(f"the role directory at {self._settings.url} sent an invalid response: {error}") from error
        return {entry.name: entry for entry in found}

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of an answer; raises `OSError` for any other status than 200, 404 and 409."""
        token = directory_token(self._settings.secret)
        connection = self._connection()
        try:
            self._require_proof(token)
            connection.request(method, path, body=body, headers={TOKEN_HEADER: token})
            answer = connection.getresponse()
            text = answer.read(_ANSWER_LIMIT)
        except http.client.HTTPException as error:
            raise OSError(f"the role directory at {self._settings.url} sent an invalid response: {error!r}") from error
        finally:
            connection.close()
        if answer.status not in {http.client.OK, http.client.NOT_FOUND, http.client.CONFLICT}:
            raise OSError(f"the role directory at {self._settings.url} returned HTTP status {answer.status}: {text[:200]!r}")
        return answer.status, text

    def _require_proof(self, token: str) -> None:
        """Raise `OSError` unless the program at the address has the secret of the job; with TLS its certificate is the proof.

        Each request has a connection of its own, so each needs the proof: another program may have taken the port meanwhile.
        """
        if self._settings.tls is None and not has_proven(self._connection(), DIRECTORY, token):
            raise OSError(
                f"the program at {self._settings.url} has not proven that it is the role directory of this job; do all "
                "processes have the same secret and TLS setting?"
            )

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address
        connection = http.client.HTTPConnection(host, port, timeout=_REQUEST_TIME)
        if self._settings.tls is not None:
            connection.connect()
            context = client_context(self._settings.tls)
            connection.sock = context.wrap_socket(connection.sock, server_hostname=peer_name(self._settings.job))
        return connection


def _entry(text: bytes) -> RoleEntry:
    try:
        return read_entry(text)
    except WireError as error:
        raise OSError(f"the role directory sent an invalid entry: {error}") from error
