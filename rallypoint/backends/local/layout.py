"""Where everything of a job lies, readable by a person. Pure paths.

```
$RALLYPOINT_HOME/jobs/NAME/
    job.yaml  plan.json  record.json  status.json  endpoint.json  secret  tls/  function.json
    supervisor.log  supervisor.lock  record.lock
    coordinator/term-T/    shim.json  exit.json  coordinator.log
    nodes/I/attempt-A.K/   shim.json  exit.json  agent.log  logs/round-R/rank-N.out .err
    hosts/NAME-G/host-N/   shim.json  exit.json  agent.log  host.json  units/ROLE-I/A.R.K/ (wire/unit_files.py)
    jobs/NAME-ROLE/        the job of an elastic role, in the same layout
    directory/  roles-secret  config.json
```
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rallypoint.backends.local.node import NodeFolder
from rallypoint.wire.bounds import read_count

__all__ = ["FOLDERS", "FOREIGN", "JobFolder", "foreign_folder", "is_job_name", "listed"]

#: Folders of nodes, of coordinators or of hosts of a job that are looked at: a script can create any number of them.
FOLDERS = 1 << 14

#: An error about the folder `jobs` in the folder of a job.
FOREIGN = "the path is a link or belongs to another user; expected a folder of the job's user"

#: Errors for a folder that is missing, no folder, or not readable.
_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})

_TERM = re.compile(r"term-(\d+)", re.ASCII)
_HOST = re.compile(r"host-(\d+)", re.ASCII)
_NODE = re.compile(r"attempt-(\d+)\.(\d+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def is_job_name(name: str) -> bool:
    """Return whether a folder of this name may be a job's; ours while they are made or removed begin with a dot."""
    return _NAME.fullmatch(name) is not None


def foreign_folder(home: Path, user: int, below: Iterable[str] = ("jobs", "supervisors")) -> tuple[Path, int] | None:
    """Return a folder of a home, or a link in its place, that belongs to neither `user` nor root, and its owner; else None.

    The folders are the home and those `below` it.

    Its owner could exchange the folders below it for links while a process of `user` works there. Reads folders; raises
    `OSError`.
    """
    for folder in (home, *(home / name for name in below)):
        for follow in (False, True):
            with contextlib.suppress(FileNotFoundError):
                owner = folder.stat(follow_symlinks=follow).st_uid
                if owner not in (user, 0):
                    return folder, owner
    return None


def listed(root: Path, pattern: str) -> list[Path]:
    """Return the paths below a folder that match a pattern, sorted: at most `FOLDERS` of them. Reads folders.

    Each part of the pattern is a name or has `*`. In all folders of one level together, at most four times as many entries are
    read, and no link is followed. `Path.glob` first reads all entries of a folder into memory, however many they are.
    """
    found = [root]
    *folders, last = pattern.split("/")
    for part in folders:
        found = _level(found, part, folders_only=True)
    return sorted(_level(found, last, folders_only=False))


def _level(folders: Iterable[Path], part: str, *, folders_only: bool) -> list[Path]:
    if "*" not in part:
        return [path for folder in folders if os.path.lexists(path := folder / part)]
    found: list[Path] = []
    left = 4 * FOLDERS
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if fnmatchcase(entry.name, part) and (not folders_only or entry.is_dir(follow_symlinks=False)):
                        found.append(folder / entry.name)
                    if len(found) == FOLDERS:
                        return found
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
    return found


def _is_own(path: Path) -> bool:
    """Return whether a node's folder is in the job's folder: a script could link to another folder. Reads folders."""
    return not any(folder.is_symlink() for folder in (path, *path.parents[:2]))


@dataclass(frozen=True, kw_only=True)
class JobFolder:
    """The files of one job."""

    path: Path

    def owner(self) -> int:
        """Return the user whose job it is; raises `OSError` where there is none."""
        return self.path.lstat().st_uid

    @property
    def jobs(self) -> Path:
        """The folder with the jobs of the job's elastic roles."""
        return self.path / "jobs"

    def has_own_jobs(self) -> bool:
        """Return whether `jobs` is missing, or a folder of the job's user: a script could link to that of another job."""
        try:
            found = self.jobs.lstat()
            return stat.S_ISDIR(found.st_mode) and found.st_uid == self.owner()
        except FileNotFoundError:
            return True

    @property
    def job(self) -> Path:
        """What the user asked for."""
        return self.path / "job.yaml"

    @property
    def plan(self) -> Path:
        """What it compiled to (wire/plan.py)."""
        return self.path / "plan.json"

    @property
    def record(self) -> Path:
        """What supervisors remember (supervision/record.py)."""
        return self.path / "record.json"

    @property
    def record_lock(self) -> Path:
        """Held for the moment in which the record is compared and replaced."""
        return self.path / "record.lock"

    @property
    def status(self) -> Path:
        """The coordinator's last word (wire/status.py)."""
        return self.path / "status.json"

    @property
    def endpoint(self) -> Path:
        """Where the coordinator listens (wire/endpoint.py)."""
        return self.path / "endpoint.json"

    @property
    def secret(self) -> Path:
        """What agents and coordinator know each other by; for its owner's eyes."""
        return self.path / "secret"

    @property
    def tls(self) -> Path:
        """Folder with the job's authority and its certificate (wire/tls.py); for its owner's eyes."""
        return self.path / "tls"

    @property
    def function(self) -> Path:
        """What the workers call, where the job is a function (wire/function.py); for its owner's eyes."""
        return self.path / "function.json"

    @property
    def supervisor_log(self) -> Path:
        """What a detached supervisor says."""
        return self.path / "supervisor.log"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the one process that supervises the job; says which."""
        return self.path / "supervisor.lock"

    def coordinator(self, term: int) -> NodeFolder:
        """The coordinator of one term."""
        return NodeFolder(path=self.path / "coordinator" / f"term-{term}", number=-1, incarnation=term)

    def node(self, node: int, attempt: int, incarnation: int) -> NodeFolder:
        """One incarnation of the node of one slot."""
        path = self.path / "nodes" / str(node) / f"attempt-{attempt}.{incarnation}"
        return NodeFolder(path=path, number=node, incarnation=incarnation)

    def coordinators(self) -> Iterator[NodeFolder]:
        """Every coordinator whose folder is there. Reads folders."""
        for path in listed(self.path, "coordinator/term-*"):
            if (match := _TERM.fullmatch(path.name)) and (term := read_count(match[1])) is not None and _is_own(path):
                yield self.coordinator(term)

    def nodes(self) -> Iterator[tuple[int, NodeFolder]]:
        """Every node whose folder is there, with its attempt. Reads folders."""
        for path in listed(self.path, "nodes/*/attempt-*"):
            match = _NODE.fullmatch(path.name)
            if match is None or not _is_own(path):
                continue
            node, attempt, incarnation = map(read_count, (path.parent.name, *match.groups()))
            if node is not None and attempt is not None and incarnation is not None:
                yield attempt, self.node(node, attempt, incarnation)

    def host(self, group: str, number: int) -> NodeFolder:
        """One host of a group of instances."""
        return NodeFolder(path=self.path / "hosts" / group / f"host-{number}", number=0, incarnation=number)

    def hosts(self, group: str = "*") -> Iterator[tuple[str, NodeFolder]]:
        """Every host whose folder is there, with its group; of one group in their order. Reads folders."""
        found = [
            (path.parent.name, number, path)
            for path in listed(self.path, f"hosts/{group}/host-*")
            if (match := _HOST.fullmatch(path.name)) and (number := read_count(match[1])) is not None and _is_own(path)
        ]
        for name, number, _ in sorted(found):
            yield name, self.host(name, number)

    def children(self) -> Iterator[JobFolder]:
        """The jobs of elastic roles. Reads folders."""
        if not (self.path / "jobs").is_dir():
            return
        for path in listed(self.path, "jobs/*"):
            if is_job_name(path.name) and not path.is_symlink() and self.has_own_jobs():
                yield JobFolder(path=path)

    @property
    def directory(self) -> Path:
        """Where the instances of a job with roles find each other."""
        return self.path / "directory"

    @property
    def roles_secret(self) -> Path:
        """What instances know each other by."""
        return self.path / "roles-secret"

    @property
    def config(self) -> Path:
        """The `config` of a job with roles."""
        return self.path / "config.json"

    def everyone(self) -> Iterator[NodeFolder]:
        """Every coordinator and node whose folder is there. Reads folders."""
        yield from self.coordinators()
        for _, node in self.nodes():
            yield node
        for _, host in self.hosts():
            yield host
