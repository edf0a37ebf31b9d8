"""What the Ray job of a submission asks Ray for: the ledger, which it creates unless it lives."""

from __future__ import annotations

import os
from typing import Any

import ray

from rallypoint.backends.ray.access import LEDGER
from rallypoint.backends.ray.cluster.ledger import Ledger
from rallypoint.backends.ray.cluster.priority import SETTING, match_priority
from rallypoint.backends.ray.placement import HEAD

__all__ = ["connect", "open_ledger"]


def connect(namespace: str, home: str) -> dict[str, str]:
    """Connect to the cluster of this machine, and return where the ledger answers; creates it unless it lives."""
    ray.init(address="auto", namespace=namespace, log_to_driver=False, logging_level="warning")
    return open_ledger(namespace, home)


def open_ledger(namespace: str, home: str) -> dict[str, str]:
    """Return where the ledger answers; creates it unless it lives."""
    for _ in range(5):
        actor: Any = (
            ray.remote(_Ledger)
            .options(
                name=LEDGER,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=64,
                num_cpus=0,
                resources={HEAD: 0.001},
            )
            .remote(home, namespace)
        )
        try:
            found: dict[str, str] = ray.get(actor.open.remote())
        except ray.exceptions.RayActorError:
            continue  # it ended meanwhile: its last job was deleted
        return found
    raise SystemExit("the ledger actor exited five times during its start; see the actor's log in the Ray dashboard")


class _Ledger(Ledger):
    """The ledger as an actor."""

    def __init__(self, home: str, namespace: str) -> None:
        cluster = str(ray.get_runtime_context().gcs_address)
        super().__init__(home, namespace, ray.util.get_node_ip_address(), cluster=cluster)
        match_priority(os.getppid(), os.environ.get(SETTING))
