"""The Secrets of attempts: created before anything that needs them, deleted before anything that had them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
import time
from collections.abc import Callable, Mapping

from rallypoint.backends.certificates import LIFETIME, RENEW_AFTER, new_files, renewed, wants_renewal
from rallypoint.backends.contract import ActionError, BackendError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.client import MERGE_PATCH
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import UID
from rallypoint.backends.kubernetes.manifests.objects import attempt_secret, encoded
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.wire.plan import Plan
from rallypoint.wire.tls import AUTHORITY_KEY, AUTO, PEER_FILES

__all__ = ["AttemptSecrets"]

log = logging.getLogger(__name__)


class AttemptSecrets:
    """The Secrets of one namespace's attempts; `clock` gives seconds since the epoch."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.time) -> None:
        self._cluster, self._clock = cluster, clock

    async def ensure(self, job: JobRef, plan: Plan, attempt: int) -> None:
        """Create the Secret of an attempt unless it exists, and delete that of the attempt before.

        Raises `ApiError`, `SubmitError` where no certificates can be created, and `ActionError` where another job has an object
        of this name.
        """
        if attempt > 1:
            # Where all of the last attempt had ended by itself nothing was removed, and its Secret is still there.
            await self.delete(job, attempt - 1)
        files = await self.certificates(job, plan)
        token = secrets.token_hex(32)
        manifest = attempt_secret(job, plan=plan, attempt=attempt, token=token, certificates=files)
        try:
            await self._cluster.create("secrets", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._require_ours(job, manifest["metadata"]["name"])

    async def certificates(self, job: JobRef, plan: Plan) -> dict[str, str] | None:
        """Return the files of a new authority of the job, None for a job without its own; raises `SubmitError`."""
        # In a thread: cryptography is slow to import.
        return await asyncio.to_thread(new_files, job.name, self._clock()) if plan.tls == AUTO else None

    async def delete(self, job: JobRef, attempt: int) -> None:
        """Delete the Secret of an attempt; one that does not exist is fine."""
        await self._cluster.delete("secrets", names.attempt_secret(job, attempt))

    async def renew(self, job: JobRef, attempt: int, *, after: float = RENEW_AFTER, lifetime: float = LIFETIME) -> bool:
        """Replace a certificate that has been in use for `after` seconds, and return whether it was replaced.

        Raises `BackendError`.
        """
        return await self._renew(job, names.attempt_secret(job, attempt), after=after, lifetime=lifetime)

    async def renew_roles(self, job: JobRef, *, after: float = RENEW_AFTER, lifetime: float = LIFETIME) -> bool:
        """Do the same with the certificate of the calls between the roles of a job."""
        return await self._renew(job, names.roles_secret(job), after=after, lifetime=lifetime)

    async def _renew(self, job: JobRef, name: str, *, after: float, lifetime: float) -> bool:
        now = self._clock()
        found = await self._cluster.get("secrets", name)
        if found is None or (found["metadata"].get("labels") or {}).get(UID) != job.uid:
            return False
        try:
            files = _decoded(found.get("data") or {})
            if not await asyncio.to_thread(wants_renewal, files, now, after=after):
                return False
            made = await asyncio.to_thread(renewed, files, job.name, now, lifetime=lifetime)
        except (ValueError, KeyError) as error:
            raise BackendError(f"Secret {name}: {error!r}") from error
        # At its version: another supervisor may renew it, too, and certificate and key belong together.
        change = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "data": encoded({key: made[key] for key in PEER_FILES}),
        }
        try:
            await self._cluster.patch("secrets", name, change, MERGE_PATCH)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            if error.status == 403:
                what = "`rallypoint manifests rbac --tls` prints the Role that is needed"
                raise BackendError(f"{error.said} ({what})") from error
            raise
        log.info("job=%s: the supervisor renewed the TLS certificate of the job", job.name)
        return True

    async def _require_ours(self, job: JobRef, name: str) -> None:
        found = await self._cluster.get("secrets", name)
        if found is None:
            raise ActionError(f"Secret {name} of job {job.name} was deleted while the attempt was starting")
        if (found["metadata"].get("labels") or {}).get(UID) != job.uid:
            raise ActionError(
                f"Secret {name} already exists and does not belong to this job; delete the existing Secret", fatal=True
            )


def _decoded(data: Mapping[str, str]) -> dict[str, str]:
    """Return the certificates of a Secret; raises `KeyError`, `ValueError`."""
    try:
        return {key: base64.b64decode(data[key]).decode("ascii") for key in (*PEER_FILES, AUTHORITY_KEY)}
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"cannot decode the TLS certificates in this Secret of a job: {error}; expected PEM in base64"
        ) from error
