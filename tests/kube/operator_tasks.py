"""Operators that run on the emulated cluster, and what is shown of their jobs."""

from __future__ import annotations

import json
from typing import Any

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.report.page.published import published_page
from rallypoint.wire import codec

__all__ = ["on_emulator", "shown"]


def on_emulator(operator: type, server: str, **arguments: Any) -> Any:
    """Return an operator that runs on the emulated cluster, as a task that is not killed from outside."""

    class Operator(operator):  # type: ignore[misc]
        def open_backend(self) -> KubernetesBackend:
            return KubernetesBackend(Access(namespace="default", server=server))

        async def ask_state(self, context: Any) -> str:
            return "running"

    return Operator(task_id="train", on_finish_action="keep_job", deferrable=False, poll_interval=0.1, **arguments)


async def shown(server: str, prefix: str) -> tuple[str, str]:
    """Return the stored record of the job whose name begins so, and the page that a task would publish."""
    backend = KubernetesBackend(Access(namespace="default", server=server))
    try:
        (name,) = (name for name in await backend.names() if name.startswith(prefix))
        stored = await backend.load(name)
        assert stored is not None
        return codec.dumps(stored.record), json.dumps(await published_page(backend, name, tries={"x": 1}, place="here"))
    finally:
        await backend.close()
