"""The certificates of a local job: files in its folder, for its owner's eyes. Everything here may block."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from rallypoint.backends.certificates import LIFETIME, RENEW_AFTER, new_files, renewed, wants_renewal
from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable
from rallypoint.backends.local.files import read_bytes
from rallypoint.backends.local.layout import JobFolder
from rallypoint.wire.private import private_folder
from rallypoint.wire.tls import AUTHORITY_KEY, CERTIFICATE, KEY, PEER_FILES

__all__ = ["create", "renew"]

log = logging.getLogger(__name__)


def create(folder: JobFolder, job: str, now: float) -> None:
    """Create the authority of a job and its first certificate; raises `SubmitError`, `OSError`."""
    private_folder(folder.tls)
    _write(folder, new_files(job, now), (*PEER_FILES, AUTHORITY_KEY))


def renew(folder: JobFolder, job: str, now: float, *, after: float = RENEW_AFTER, lifetime: float = LIFETIME) -> bool:
    """Replace a certificate that has been in use for `after` seconds, and return whether it was replaced.

    A job without certificates is left alone. What cannot be renewed now is logged, and tried again with the next call.
    """
    try:
        # Only its user replaces the files: a script could link the folder elsewhere after they were read.
        if not folder.tls.is_dir() or folder.owner() != os.geteuid():
            return False
        files = {name: read_bytes(folder.tls / name).decode("ascii") for name in (*PEER_FILES, AUTHORITY_KEY)}
        if not wants_renewal(files, now, after=after):
            return False
        # The key first: until the certificate follows, agents keep those that they have read.
        _write(folder, renewed(files, job, now, lifetime=lifetime), (KEY, CERTIFICATE))
    except (OSError, ValueError, BackendError) as error:
        log.warning(
            "job=%s: the supervisor cannot renew the TLS certificate of the job (%s); the present certificate stays in use",
            job,
            error,
        )
        return False
    log.info("job=%s: the supervisor renewed the TLS certificate of the job", job)
    return True


def _write(folder: JobFolder, files: Mapping[str, str], names: tuple[str, ...]) -> None:
    for name in names:
        durable.write_text(str(folder.tls / name), files[name])
