"""Per-rank log files, which workers write by themselves: they lose nothing when their agent ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.errors import ConfigError
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import PRIVATE_FILE, claim_folder, open_own, private_folder

__all__ = ["STDERR", "STDOUT", "OpenLogs", "RankLogs", "Streams", "claim_logs", "open_logs", "written"]

#: Bits of torchrun's numbers for streams: `0` none, `1` stdout, `2` stderr, `3` both.
STDOUT, STDERR = 1, 2

#: How log files are opened. Several processes of one rank may append, and none must overwrite another.
_OPENED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW


@dataclass(frozen=True, kw_only=True)
class Streams:
    """What goes where, by local rank; `redirects` and `tee` hold for the ranks that have no number of their own.

    Attributes:
        redirects: streams that go to a file.
        tee: streams that go to a file and, with a prefix, to the console.
        console: local ranks whose output may reach the console; None is all.
        duplicate_out, duplicate_err: of what is copied of stdout and stderr, lines with one of these texts go to a file of
            their own, too.
    """

    redirects: int = 0
    tee: int = 0
    redirects_of: Mapping[int, int] = field(default_factory=dict)
    tee_of: Mapping[int, int] = field(default_factory=dict)
    console: frozenset[int] | None = None
    duplicate_out: tuple[str, ...] = ()
    duplicate_err: tuple[str, ...] = ()

    @classmethod
    def from_plan(cls, plan: Plan) -> Streams:
        """Return what a plan says for all ranks."""
        return cls(redirects=plan.logs.redirects, tee=plan.logs.tee)

    def teed(self, local_rank: int) -> int:
        """Return the streams of `local_rank` that are copied to the console."""
        return self.tee_of.get(local_rank, 0 if self.tee_of else self.tee) if self._shown(local_rank) else 0

    def filed(self, local_rank: int) -> int:
        """Return the streams of `local_rank` that go to a file: those that must not reach the console too."""
        redirected = self.redirects_of.get(local_rank, 0 if self.redirects_of else self.redirects)
        teed = self.tee_of.get(local_rank, 0 if self.tee_of else self.tee)
        return redirected | teed if self._shown(local_rank) else STDOUT | STDERR

    def _shown(self, local_rank: int) -> bool:
        return self.console is None or local_rank in self.console


@dataclass(frozen=True, kw_only=True)
class RankLogs:
    """Files of one rank in one round; `out` and `err` are None where the stream is not redirected."""

    out: Path | None
    err: Path | None
    error_file: Path


@dataclass(frozen=True, kw_only=True)
class OpenLogs:
    """The files of one rank while its process is started; `close` them then."""

    paths: RankLogs
    out: int | None
    err: int | None

    def close(self) -> None:
        """Close our copies."""
        for fd in (self.out, self.err):
            if fd is not None:
                os.close(fd)


def claim_logs(log_dir: str, folder: Path) -> Path:
    """Create a folder below `logs.dir` and return it; raises `ConfigError` if another user could replace its files."""
    try:
        claim_folder(Path(log_dir), folder)
    except OSError as error:
        raise ConfigError(f"logs.dir: cannot use {error.filename or folder}: {error.strerror}") from error
    return folder


def open_logs(folder: Path, rank: int, filed: int) -> OpenLogs:
    """Open the files of one rank in the folder of the round; raises `ConfigError` when they cannot be written."""
    base = folder / f"rank-{rank}"
    paths = RankLogs(
        out=base.with_suffix(".out") if filed & STDOUT else None,
        err=base.with_suffix(".err") if filed & STDERR else None,
        error_file=base.with_suffix(".error.json"),
    )
    out = None
    try:
        private_folder(folder)
        inside = open_own(folder)
        try:
            out = _open(paths.out, inside)
            return OpenLogs(paths=paths, out=out, err=_open(paths.err, inside))
        finally:
            os.close(inside)
    except OSError as error:
        if out is not None:
            os.close(out)
        raise ConfigError(f"log folder {folder}: cannot create the log files: {error.strerror}") from error


def _open(path: Path | None, folder: int) -> int | None:
    return None if path is None else os.open(path.name, _OPENED, PRIVATE_FILE, dir_fd=folder)


def written(logs: RankLogs) -> int:
    """Return how many bytes a worker has written to its files so far; 0 where it has none."""
    total = 0
    for path in (logs.out, logs.err):
        with contextlib.suppress(OSError):
            total += 0 if path is None else path.stat().st_size
    return total
