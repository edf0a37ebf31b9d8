"""Where the ledger of a namespace answers, in a file beside its key.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rallypoint.backends.local import durable, proc
from rallypoint.backends.ray.line import PATH

__all__ = ["KEY", "Place", "find", "home_of", "note", "print_secret", "read_private"]

#: The files with the key and with the place of the ledger.
KEY, _PLACE = "ledger.key", "ledger.json"

#: Bytes that are read of each of them, and of the answer of a ledger.
_LONGEST = 4096

#: Seconds that a ledger has to answer; after them the Ray job asks Ray for it.
_PATIENCE = 5.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a ledger answers: its address, its namespace, the address of its cluster's GCS, and its process."""

    url: str
    namespace: str
    cluster: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, url: str, namespace: str, cluster: str) -> Place:
        """Return the place of a ledger that runs in this process."""
        pid = os.getpid()
        return cls(url=url, namespace=namespace, cluster=cluster, pid=pid, start_ticks=proc.start_ticks(pid) or 0)


def home_of(home: str, namespace: str) -> Path:
    """Return the folder of a ledger on its machine; `home` is a folder, a URL, or "" for the default."""
    folder = "" if "://" in home else home
    return Path(folder or f"~/.rallypoint/ray/{namespace}").expanduser().absolute()


def note(home: Path, place: Place) -> None:
    """Store where the ledger answers. Raises `OSError`."""
    durable.write_text(str(home / _PLACE), json.dumps(asdict(place)))


def find(home: Path, namespace: str, cluster: str) -> dict[str, str] | None:
    """Return the address and the key of a ledger that answers on this machine, None where Ray must be asked for it.

    The file can be that of a ledger that has ended, of another cluster, or anything that a process of this user has written.
    """
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError, RecursionError, http.client.HTTPException):
        place = Place(**json.loads(read_private(home / _PLACE)))
        key = read_private(home / KEY)
        # Its process lives, so the port is its own: no other process receives the key.
        lives = place.start_ticks and proc.start_ticks(int(place.pid)) == place.start_ticks
        of_here = bool(cluster) and (place.namespace, place.cluster) == (namespace, cluster)
        if key and of_here and lives and _answers(place.url, key, home):
            return {"url": place.url, "key": key}
    return None


def _answers(url: str, key: str, home: Path) -> bool:
    """Return whether the ledger of a folder answers. Raises `OSError`, `ValueError` and `HTTPException`."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        return False
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_PATIENCE)
    try:
        connection.request("POST", f"{PATH}ping", body="{}", headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        told: Any = json.loads(answer.read(_LONGEST))
        return answer.status == 200 and bool(told["value"]["home"] == str(home))
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
    earlier = path.read_bytes()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(earlier + line.encode())
    fresh.replace(path)


def read_private(key: Path) -> str:
    """Return the text of a file, such as the key; "" without one.

    Raises `OSError` for a file that others can have chosen, or can read: who knows the key has all jobs. A link could lead to a
    file of this user with a text that others know.
    """
    try:
        descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _refused(key, "is a symbolic link") from error
    try:
        found = os.fstat(descriptor)
        with tempfile.TemporaryFile(dir=key.parent) as probe:  # some network file systems give new files another owner
            own = os.fstat(probe.fileno()).st_uid
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise _refused(key, "is no regular file with one name")
        if found.st_uid != own or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _refused(key, f"has mode {stat.S_IMODE(found.st_mode):04o} and owner uid {found.st_uid}", own)
        return os.read(descriptor, _LONGEST).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _refused(key: Path, problem: str, own: int | None = None) -> PermissionError:
    owner = "" if own is None else f" and owner uid {own}"
    told = f"the key file of the ledger {problem}; expected a file of mode 0600{owner}; delete the file to get a new key"
    return PermissionError(errno.EACCES, told, str(key))
