"""Where the ledger of a namespace answers, and its key, in a file of its folder.

With that file the Ray job of a submission finds a ledger that runs on its machine without connecting to Ray, which takes more
than a second of CPU time. Imports little for the same reason.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import secrets
import stat
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rallypoint.backends.local import proc
from rallypoint.backends.ray.line import health_page
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, is_proven, new_nonce

__all__ = ["Place", "find", "home_of", "note", "print_secret"]

#: The file with the place and the key of the ledger.
_PLACE = "ledger.json"

#: Bytes that are read of this file, and of the answer of a ledger.
_LONGEST = 4096

#: Seconds that a ledger has to answer; after them the Ray job asks Ray for it.
_PATIENCE = 5.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a ledger answers: its address, its key, its namespace, the address of its cluster's GCS, and its process."""

    url: str
    key: str = field(repr=False)
    namespace: str
    cluster: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, url: str, key: str, namespace: str, cluster: str) -> Place:
        """Return the place of a ledger that runs in this process."""
        pid = os.getpid()
        ticks = proc.start_ticks(pid) or 0
        return cls(url=url, key=key, namespace=namespace, cluster=cluster, pid=pid, start_ticks=ticks)


def home_of(home: str, namespace: str) -> Path:
    """Return the folder of a ledger on its machine; `home` is a folder, a URL, or "" for the default."""
    folder = "" if "://" in home else home
    return Path(folder or f"~/.rallypoint/ray/{namespace}").expanduser().absolute()


def note(home: Path, place: Place) -> None:
    """Store where the ledger answers, in a new file of mode 0600 that takes the place of the old one. Raises `OSError`."""
    _replace_private(home / _PLACE, json.dumps(asdict(place)).encode())


def find(home: Path, namespace: str, cluster: str) -> dict[str, str] | None:
    """Return the address and the key of a ledger that answers on this machine, None where Ray must be asked for it.

    The file can be that of a ledger that has ended, of another cluster, or anything that a process of this user has written.
    """
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError, RecursionError, http.client.HTTPException):
        place = Place(**json.loads(_read_private(home / _PLACE)))
        lives = place.start_ticks and proc.start_ticks(int(place.pid)) == place.start_ticks
        of_here = bool(cluster) and (place.namespace, place.cluster) == (namespace, cluster)
        if place.key and of_here and lives and _is_ledger(place.url, place.key):
            return {"url": place.url, "key": place.key}
    return None


def _is_ledger(url: str, key: str) -> bool:
    """Return whether the program at a URL proves that it has the key. Raises `OSError`, `ValueError` and `HTTPException`."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        return False
    nonce = new_nonce()
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", HEALTH_PATH, headers={NONCE_HEADER: nonce})
        answer = connection.getresponse()
        answer.read(_LONGEST)
        return is_proven(key, nonce, health_page(url), answer.getheader(PROOF_HEADER, ""))
    finally:
        connection.close()


def print_secret(line: str) -> None:
    """Write a line to the standard output; if this is a file, only its owner can read the line, whatever its mode was.

    Ray keeps the output of a job in a file that every user of the head node can read and may have open already. So the line
    goes to a new file that takes the place of the old one.
    """
    out = sys.stdout.fileno()
    if not stat.S_ISREG(os.fstat(out).st_mode):
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    path = Path(f"/proc/self/fd/{out}").readlink()
    _replace_private(path, path.read_bytes() + line.encode())


def _replace_private(path: Path, content: bytes) -> None:
    """Replace a file by a new one that only this user can read, and that no other program can have created or opened."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink()
        raise


def _read_private(path: Path) -> str:
    """Return the text of a file.

    Raises `OSError` for a file that others can have written or linked, or can read: they would choose the ledger of later jobs.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        with tempfile.TemporaryFile(dir=path.parent) as probe:  # some network file systems give new files another owner
            own = os.fstat(probe.fileno()).st_uid
        is_private = found.st_uid == own and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not is_private or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise PermissionError(errno.EACCES, "other users can read or replace the file", str(path))
        return os.read(descriptor, _LONGEST).decode(errors="replace")
    finally:
        os.close(descriptor)
