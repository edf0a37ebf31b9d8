"""The Secrets of attempts: created before anything that needs them, deleted before anything that had them."""

from __future__ import annotations

import secrets

from rallypoint.backends.contract import ActionError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import UID
from rallypoint.backends.kubernetes.manifests.objects import attempt_secret
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.wire.plan import Plan

__all__ = ["AttemptSecrets"]


class AttemptSecrets:
    """The Secrets of one namespace's attempts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ensure(self, job: JobRef, plan: Plan, attempt: int) -> None:
        """Create the Secret of an attempt unless it exists, and delete that of the attempt before.

        Raises `ApiError`, and `ActionError` where another job has an object of this name.
        """
        if attempt > 1:
            # Where all of the last attempt had ended by itself nothing was removed, and its Secret is still there.
            await self.delete(job, attempt - 1)
        manifest = attempt_secret(job, plan=plan, attempt=attempt, token=secrets.token_hex(32))
        try:
            await self._cluster.create("secrets", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._require_ours(job, manifest["metadata"]["name"])

    async def delete(self, job: JobRef, attempt: int) -> None:
        """Delete the Secret of an attempt; one that does not exist is fine."""
        await self._cluster.delete("secrets", names.attempt_secret(job, attempt))

    async def _require_ours(self, job: JobRef, name: str) -> None:
        found = await self._cluster.get("secrets", name)
        if found is None:
            raise ActionError(f"secrets: {name} was there and is gone again")
        if (found["metadata"].get("labels") or {}).get(UID) != job.uid:
            raise ActionError(f"secrets: {name} is there already and belongs to somebody else; delete it", fatal=True)
