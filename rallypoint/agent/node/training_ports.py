"""The ports on this node that workers may take for themselves: which are free is found out before each round is asked for.

What follows from it is in `rendezvous/ports.py`: the coordinator takes the first range that every node has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

from rallypoint.agent.accelerators import accelerator
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.rendezvous.ports import RANGE, free_ranges, window
from rallypoint.wire.env import TRAINING_PORT
from rallypoint.wire.plan import Plan

__all__ = ["TrainingPorts", "first_port"]

#: Below it only root may listen.
_PRIVILEGED = 1024


class TrainingPorts:
    """What this node offers; nothing where its devices need no ports."""

    def __init__(self, plan: Plan, base: Mapping[str, str] = os.environ) -> None:
        """Prepare to look; raises `ConfigError` for a port that cannot be begun from."""
        self._start = first_port(plan, base) if accelerator(plan.devices.accelerator).needs_ports else 0
        self.offer: tuple[int, ...] = ()

    async def look(self) -> None:
        """Find out which ports are free now."""
        if self._start:
            self.offer = await asyncio.to_thread(_offer, self._start)


def first_port(plan: Plan, base: Mapping[str, str]) -> int:
    """Return where the search begins: what the environment of workers says already, or the plan's `training_port`.

    Raises `ConfigError` for anything that is no port, or behind which no range has room.
    """
    given = plan.env.get(TRAINING_PORT, base.get(TRAINING_PORT))
    where = "training_port" if given is None else TRAINING_PORT
    text = str(plan.devices.training_port) if given is None else given
    last = 65_535 - RANGE + 1
    if not text.isdecimal() or not _PRIVILEGED <= int(text) <= last:
        allowed = f"a port from {_PRIVILEGED} to {last} ({RANGE} consecutive ports are used)"
        raise ConfigError(f"{where} {text}: not allowed; expected {allowed}")
    return int(text)


def _offer(start: int) -> tuple[int, ...]:
    return free_ranges(start, _free(window(start)))


def _free(ports: range) -> Iterator[int]:
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            yield port
