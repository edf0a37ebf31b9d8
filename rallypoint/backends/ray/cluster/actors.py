"""The actors of nodes, and of groups of instances.

Their processes import this module, so it imports nothing of the job document: that would take longer than all else here.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray

from rallypoint.backends.ray.cluster.host import Host, NodeSpec, at_once
from rallypoint.backends.ray.cluster.priority import SETTING, match_priority

__all__ = ["InstanceHost", "NodeHost"]

#: Longest wait for news of a node, in seconds.
_SLICE = 2.0


class InstanceHost(Host):
    """The actor of a group of instances, which receives what is to run while it waits for news."""

    def __init__(self) -> None:
        match_priority(os.getppid(), os.environ.get(SETTING))
        super().__init__()

    async def where(self) -> dict[str, str]:
        """Return the id and the address of the Ray node that this actor runs on."""
        return _where()


class NodeHost:
    """The actor of a node, which does one call after another.

    While a method waits, it has the main thread of the actor's process. Ray itself wakes that thread a hundred times a second,
    which costs more than all other processes of a node that waits.
    """

    def __init__(self) -> None:
        match_priority(os.getppid(), os.environ.get(SETTING))
        self._host, self._loop = Host(call=at_once), asyncio.new_event_loop()

    def where(self) -> dict[str, str]:
        """Return the id and the address of the Ray node that this actor runs on."""
        return _where()

    def start(self, spec: NodeSpec) -> dict[str, Any]:
        """See `Host.start`."""
        return self._loop.run_until_complete(self._host.start(spec))

    def news(self, offsets: dict[str, int], timeout: float) -> dict[str, Any]:
        """See `Host.news`; returns within `_SLICE` seconds, since all other calls wait meanwhile."""
        return self._loop.run_until_complete(self._host.news(offsets, min(timeout, _SLICE)))

    def endpoint(self, text: str) -> None:
        """See `Host.endpoint`."""
        self._loop.run_until_complete(self._host.endpoint(text))

    def renew(self, files: dict[str, str]) -> None:
        """See `Host.renew`."""
        self._loop.run_until_complete(self._host.renew(files))

    def end(self, *, force: bool) -> None:
        """See `Host.end`."""
        self._loop.run_until_complete(self._host.end(force=force))

    def close(self) -> None:
        """See `Host.close`."""
        self._loop.run_until_complete(self._host.close())


def _where() -> dict[str, str]:
    return {"node_id": ray.get_runtime_context().get_node_id(), "address": ray.util.get_node_ip_address()}
