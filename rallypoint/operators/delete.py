"""`DeleteJobOperator`: delete a job, for example in a teardown task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rallypoint.provider import backend_access
from rallypoint.provider.errors import JobRefused, positive
from rallypoint.provider.place import place_of
from rallypoint.provider.placed import PlacedOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.backends.contract import Backend

__all__ = ["DeleteJobOperator"]


class DeleteJobOperator(PlacedOperator):
    """Stop a job in any state and delete its record and logs. Files in its `checkpoint_dir` are kept.

    Also takes the arguments of `PlacedOperator`. Deleting a deleted job has no effect.

    :param job_name: name of the job. (templated)
    :param missing_ok: True: a missing job is a success; False: it fails with `JobRefused`.
    :param wait_for_completion: wait until the job is gone. False only requests the deletion if a supervisor is running, and
        waits otherwise.
    :param wait_timeout: seconds to wait. After that the task fails; the next supervisor or try completes the deletion.

    Returns True if the job existed.
    """

    template_fields: Sequence[str] = ("job_name", *PlacedOperator.template_fields)
    ui_color = "#f9e8e8"

    def __init__(
        self,
        *,
        job_name: str,
        missing_ok: bool = True,
        wait_for_completion: bool = True,
        wait_timeout: float = 1800.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        positive("wait_timeout", wait_timeout)
        self.job_name = job_name
        self.missing_ok = missing_ok
        self.wait_for_completion = wait_for_completion
        self.wait_timeout = wait_timeout

    def open_backend(self) -> Backend:
        """Return the backend that the job runs on."""
        return backend_access.open_backend(place_of(self))

    def execute(self, context: Context) -> bool:
        """Delete the job."""
        from rallypoint.backends.contract import JobNotFoundError  # noqa: PLC0415  brings pydantic, which a DAG file need not pay

        try:
            asyncio.run(self._delete(f"airflow task {context['ti'].id}"))
        except JobNotFoundError as error:
            if not self.missing_ok:
                raise JobRefused(str(error)) from error
            self.log.info("Job %s not found; nothing to delete", self.job_name)
            return False
        return True

    async def _delete(self, holder: str) -> None:
        from rallypoint.backends import requests  # noqa: PLC0415  as above

        backend = self.open_backend()
        try:
            if not self.wait_for_completion and await self._is_supervised(backend):
                await requests.request_deletion(backend, self.job_name)
                self.log.info("Requested the deletion of job %s; the job's supervisor deletes the job", self.job_name)
                return
            await requests.delete(backend, self.job_name, holder=holder, timeout=self.wait_timeout)
            self.log.info("Job %s deleted", self.job_name)
        finally:
            await backend.close()

    async def _is_supervised(self, backend: Backend) -> bool:
        stored = await backend.load(self.job_name)
        if stored is None or stored.record.holder is None or stored.record.released:
            return False
        pulse = await backend.pulse(stored.record.holder)
        return pulse is not None and pulse.alive is True
