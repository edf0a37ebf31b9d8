"""Where the coordinator publishes its status."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.agent.files import read_json
from rallypoint.wire import codec
from rallypoint.wire.private import replace_file
from rallypoint.wire.status import JobStatus

__all__ = ["FileSink", "StatusSink", "read_status", "refuse_later"]

log = logging.getLogger("rallypoint.sink")


class StatusSink(Protocol):
    """One place for one job.

    `trouble`: why what was published last can be read by no later coordinator; "" where it can.
    """

    @property
    def trouble(self) -> str: ...  # noqa: D102  see above

    async def publish(self, status: JobStatus) -> None:
        """Return when `status` is durable.

        Raises `StaleError` when a later attempt or term has published there, `OSError` when it does not work now.
        """
        ...


class FileSink:
    """A file that is replaced as a whole.

    What is there is compared and replaced under a lock: one that is stopped between the two, and whom another has replaced
    meanwhile, must not wake up and overwrite what the other has told. While somebody holds the lock, it does not work now.
    """

    trouble = ""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ours: tuple[int, int] | None = None

    async def publish(self, status: JobStatus) -> None:
        """Write the file in a thread; see `StatusSink`."""
        await asyncio.to_thread(self._write, status)

    def _write(self, status: JobStatus) -> None:
        with self._alone():
            if self._mark() != self._ours:
                refuse_later(read_status(self._path), status, self._path)
            replace_file(self._path, codec.dumps(status, indent=1) + "\n", durable=True)
            self._ours = self._mark()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        lock = os.open(self._path.parent, os.O_RDONLY)  # the folder's own lock: it leaves no file behind
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    def _mark(self) -> tuple[int, int] | None:
        try:
            seen = self._path.stat()
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_mtime_ns


def read_status(path: Path) -> JobStatus | None:
    """Return the status in `path`, or None when there is none; one that makes no sense is moved aside, to `NAME.unreadable`.

    Raises `ConfigError` when the file itself cannot be read or is of a version that is not understood, and `OSError` when it
    cannot be moved.
    """
    try:
        return read_json(JobStatus, path)
    except ConfigError as error:
        if not isinstance(error.__cause__, codec.WireError) or isinstance(error.__cause__, codec.VersionError):
            raise
        aside = path.with_name(f"{path.name}.unreadable")
        path.replace(aside)
        log.warning(
            "the coordinator cannot read the file with the last job status (%s); it moved the file to %s, and starts without "
            "this status",
            error,
            aside,
        )
        return None


def refuse_later(known: JobStatus | None, status: JobStatus, where: object) -> None:
    """Raise `StaleError` when `known`, which was read at `where`, is of a later attempt or term of the same job."""
    if known is None or known.uid != status.uid:
        return
    theirs, ours = (known.fence.attempt, known.fence.term), (status.fence.attempt, status.fence.term)
    if theirs > ours:
        raise StaleError(
            f"job status in {where}: a newer coordinator (attempt {theirs[0]}, term {theirs[1]}) has published its status; "
            f"this coordinator has attempt {ours[0]}, term {ours[1]}"
        )
