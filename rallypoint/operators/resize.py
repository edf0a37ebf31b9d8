"""`ResizeJobOperator`: change the number of nodes of a running job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rallypoint.provider import backend_access
from rallypoint.provider.errors import JobRefused, OptionError
from rallypoint.provider.place import place_of
from rallypoint.provider.placed import PlacedOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.backends.contract import Backend
    from rallypoint.wire.node_range import Size

__all__ = ["ResizeJobOperator"]


class ResizeJobOperator(PlacedOperator):
    """Request a new size of a running job. The job's supervisor creates or removes the nodes.

    Also takes the arguments of `PlacedOperator`. The task ends when the request is stored; use
    `RendezvousSensor(min_nodes=...)` to wait for the new size.

    :param job_name: name of the job. (templated)
    :param nodes: new number of nodes: `N` or `MIN:MAX`. (templated)
    :param min_nodes: new minimum number of nodes, instead of `nodes`. (templated)
    :param max_nodes: new maximum number of nodes, instead of `nodes`. (templated)
    :param role: in a job with several roles: name of the elastic role to resize. (templated)

    Returns the new size: `{"job": ..., "min_nodes": ..., "max_nodes": ..., "changed": ...}`, and with `role` its name.

    Raises `JobRefused` (no retry) if the job does not exist, has ended, or does not support this size.
    """

    template_fields: Sequence[str] = ("job_name", "nodes", "min_nodes", "max_nodes", "role", *PlacedOperator.template_fields)
    ui_color = "#e8eef9"

    def __init__(
        self,
        *,
        job_name: str,
        nodes: int | str | None = None,
        min_nodes: int | str | None = None,
        max_nodes: int | str | None = None,
        role: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (nodes is None) is (min_nodes is None and max_nodes is None):
            raise OptionError("nodes", nodes, "N or MIN:MAX; or omit nodes and pass min_nodes and max_nodes")
        if nodes is None and (min_nodes is None or max_nodes is None):
            missing, given = ("max_nodes", "min_nodes") if max_nodes is None else ("min_nodes", "max_nodes")
            raise OptionError(missing, None, f"a number of nodes, because {given} is set")
        self.job_name = job_name
        self.nodes = nodes
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.role = role

    def open_backend(self) -> Backend:
        """Return the backend that the job runs on."""
        return backend_access.open_backend(place_of(self))

    def execute(self, context: Context) -> dict[str, Any]:
        """Store the request."""
        from rallypoint.backends import contract, requests  # noqa: PLC0415  bring pydantic, which a DAG file need not pay for

        try:
            size = requests.read_size(f"{self.min_nodes}:{self.max_nodes}" if self.nodes is None else self.nodes)
            changed = asyncio.run(self._ask(size))
        except (contract.JobNotFoundError, contract.JobFinishedError, contract.ResizeError) as error:
            raise JobRefused(str(error)) from error
        what = f"{self.job_name}, role {self.role}" if self.role else self.job_name
        self.log.info("Job %s: requested %s nodes%s", what, size, "" if changed else ", the same as before")
        told = {"job": self.job_name, "min_nodes": size.min_nodes, "max_nodes": size.max_nodes, "changed": changed}
        return {**told, "role": self.role} if self.role else told

    async def _ask(self, size: Size) -> bool:
        from rallypoint.backends.requests import request_resize  # noqa: PLC0415  as above

        backend = self.open_backend()
        try:
            return await request_resize(backend, self.job_name, size, role=self.role or "")
        finally:
            await backend.close()
