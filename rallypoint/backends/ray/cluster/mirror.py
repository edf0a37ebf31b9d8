"""A copy of the ledger's jobs at an fsspec URL, so that a ledger on another machine finds them. Everything here blocks.

Each change is answered after its files are at the URL, the record last. So what is at the URL counts: a ledger that opens a
folder takes over every job from there, and drops jobs of its own that are not there any more.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable
from rallypoint.backends.local.layout import JobFolder, is_job_name
from rallypoint.backends.local.store import Store
from rallypoint.wire.private import private_folder
from rallypoint.wire.unit_files import EXIT, KILL, START, STOP, UNITS

__all__ = ["Mirror", "is_url"]

#: Says at the URL that it holds all jobs of a ledger, which may be none.
_MARKER = "ledger.json"

#: Files of a job that another ledger needs, below its folder; the record comes last. The jobs of elastic roles have the same.
_PLACED = tuple(
    f"{node}/{name}" for node in ("nodes/*/attempt-*", "hosts/*/host-*") for name in ("placed.json", "seen.json", "ending")
)
_UNITS = tuple(f"hosts/*/host-*/{UNITS}/*/*/{name}" for name in (START, STOP, KILL, EXIT))
_OWN = ("*", "tls/*", *_PLACED, *_UNITS)
_FILES = (*_OWN, *(f"jobs/*/{pattern}" for pattern in _OWN))
_RECORD = "record.json"

#: Files that mean something to processes of one machine alone.
_HERE = (".lock", ".log")


def is_url(storage: str) -> bool:
    """Return whether a storage is a URL and not a folder."""
    return "://" in storage


class Mirror:
    """The copy at one URL; raises `BackendError` for a URL that cannot be opened."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415  an extra
        except ModuleNotFoundError as error:
            raise BackendError(f"storage {url}: requires the package fsspec on the head node") from error
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BackendError(f"storage {url}: {error}") from error
        self._url, self._root = url, str(root).rstrip("/")
        self._sent: dict[Path, tuple[int, int]] = {}
        #: One upload of a job at a time: an older file never replaces a newer one.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def open(self, store: Store) -> None:
        """Make the jobs of a ledger those of the URL; the first ledger brings its own there."""
        try:
            if self._fs.exists(f"{self._root}/{_MARKER}"):
                self._take(store)
            else:
                for name in store.names():
                    self._send(store.job(name))
                self._fs.makedirs(self._root, exist_ok=True)
                self._fs.pipe_file(f"{self._root}/{_MARKER}", b"{}\n")
        except OSError as error:
            raise self._broken(error) from error

    def keep(self, folder: JobFolder) -> None:
        """Bring what has changed of a job to the URL, or remove the job there if it is deleted here."""
        with self._locks[folder.path.name]:
            try:
                if folder.record.exists():
                    self._send(folder)
                elif self._fs.exists(self._at(folder)):
                    self._fs.rm(self._at(folder), recursive=True)
            except OSError as error:
                raise self._broken(error) from error

    def _broken(self, error: OSError) -> BackendError:
        return BackendError(f"storage {self._url}: {error}")

    def _at(self, folder: JobFolder, name: str = "") -> str:
        return f"{self._root}/jobs/{folder.path.name}{f'/{name}' if name else ''}"

    def _send(self, folder: JobFolder) -> None:
        for path in sorted(_files(folder), key=lambda path: (path.name == _RECORD) + (path == folder.record)):
            try:
                found, content = path.stat(), path.read_bytes()
            except FileNotFoundError:
                continue
            if self._sent.get(path) == (found.st_ino, found.st_mtime_ns):
                continue
            target = self._at(folder, str(path.relative_to(folder.path)))
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(target, content)
            self._sent[path] = (found.st_ino, found.st_mtime_ns)

    def _take(self, store: Store) -> None:
        there = dict(self._jobs())
        for name in store.names():
            stored = store.load(name)
            if name not in there and stored is not None:
                store.purge(stored.record)
        private_folder(store.jobs)
        for name, files in there.items():
            folder = store.job(name)
            for file in sorted(files, key=lambda file: file == _RECORD):
                path = folder.path / file
                for parent in reversed([one for one in path.parents if one == folder.path or folder.path in one.parents]):
                    parent.mkdir(mode=0o700, exist_ok=True)
                durable.write_text(str(path), self._fs.cat_file(self._at(folder, file)).decode())

    def _jobs(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each job at the URL that has a record, with its files."""
        root = f"{self._root}/jobs"
        if not self._fs.exists(root):
            return
        for entry in self._fs.ls(root, detail=False):
            name = str(entry).rstrip("/").rpartition("/")[2]
            if not is_job_name(name):
                continue
            found: list[Any] = self._fs.find(f"{root}/{name}")
            files = [str(file).partition(f"/jobs/{name}/")[2] for file in found]
            if _RECORD in files:
                yield name, [file for file in files if _allowed(file)]


def _files(folder: JobFolder) -> Iterator[Path]:
    for pattern in _FILES:
        for path in folder.path.glob(pattern):
            if path.is_file() and not path.is_symlink() and _allowed(path.name):
                yield path


def _allowed(file: str) -> bool:
    """Return whether a file is one that travels; its name cannot lead out of the folder of its job."""
    return bool(file) and not file.endswith(_HERE) and not any(part.startswith(".") for part in file.split("/"))
