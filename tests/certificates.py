"""Folders with certificates of jobs, as tests need them: good, expired, and of somebody else."""

from __future__ import annotations

import time
from pathlib import Path

from rallypoint.backends.certificates import new_files, renewed
from rallypoint.wire.tls import AUTHORITY, AUTHORITY_KEY, PEER_FILES

__all__ = ["left", "other_job", "write"]


def left(folder: Path, job: str, *, seconds: float = 3600.0, ago: float = 0.0) -> Path:
    """Leave the files of a new authority; the certificate was issued `ago` seconds ago, and expires in `seconds`."""
    return write(folder, new_files(job, time.time() - ago, lifetime=seconds + ago))


def other_job(folder: Path, authority: Path, job: str) -> Path:
    """Leave a certificate of another job that the same authority has signed."""
    files = {name: (authority / name).read_text() for name in (*PEER_FILES, AUTHORITY_KEY)}
    return write(folder, renewed(files, job, time.time()))


def write(folder: Path, files: dict[str, str]) -> Path:
    """Leave files, each in one step; the certificate comes after its key."""
    folder.mkdir(exist_ok=True)
    for name in (AUTHORITY, AUTHORITY_KEY, "tls.key", "tls.crt"):
        beside = folder / f".{name}"
        beside.write_text(files[name])
        beside.chmod(0o600)
        beside.rename(folder / name)
    return folder
