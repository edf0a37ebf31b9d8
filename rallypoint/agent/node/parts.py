"""What an agent works with on its node: made together, begun together, closed together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping

from rallypoint.agent.accelerators import CPU, accelerator
from rallypoint.agent.clock import Clock
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.linux import become_subreaper
from rallypoint.agent.node.adviser import Adviser
from rallypoint.agent.node.health.npus import meter
from rallypoint.agent.node.lines import Lines
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.profile import node_rules
from rallypoint.agent.node.round import Round
from rallypoint.agent.rendezvous.ports import RANGE, free_ranges, window
from rallypoint.agent.workers.group import WorkerGroup
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.store import StoreKeeper
from rallypoint.agent.workers.zygote.launcher import Launcher, standby_launcher
from rallypoint.capabilities.base import NodeContext, node_capabilities
from rallypoint.wire.env import TRAINING_PORT
from rallypoint.wire.hang import Evidence
from rallypoint.wire.line import FromAgent, FromWorker
from rallypoint.wire.plan import Plan
from rallypoint.wire.pulse import Learned
from rallypoint.wire.sections import value_of

__all__ = ["Parts", "TrainingPorts", "first_port", "launcher", "restarts"]

log = logging.getLogger("rallypoint.zygote")

#: torchrun's variable for the signals that its agent handles.
_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"

#: File in which a worker leaves the names of the modules that it has imported.
_FILE = "modules.txt"

#: Below it only root may listen.
_PRIVILEGED = 1024


class Parts:
    """The parts of one agent. Those that not every plan asks for are None where it does not.

    `changed` is called when there may be something to tell the coordinator, `said` with each word of a worker (None: its line
    is closed), `store_lost` with the reason. `config` is the agent's own, with the variables that the parts give workers.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        now: Clock,
        changed: Callable[[], None],
        said: Callable[[int, FromWorker | None], None],
        store_lost: Callable[[str], None],
    ) -> None:
        plan = config.plan
        become_subreaper()
        self._reaper = Reaper()
        self._spawner = Spawner(self._reaper)
        self.capabilities = node_capabilities(self._context(config, changed))
        self.ports = TrainingPorts(plan)
        variables: dict[str, str] = {}
        for capability in self.capabilities:
            variables.update(capability.environment())
        signals = ",".join(number.name for number in config.signals)
        plan = dataclasses.replace(plan, env={_SIGNALS: signals, **plan.env, **variables})
        self.config = config = dataclasses.replace(config, plan=plan)
        self.now = now
        self._launcher = launcher(config, self._spawner, self._reaper)
        self.group = WorkerGroup(self._launcher, self._reaper, grace=plan.workers.stop_grace, now=now)
        self.devices = meter(plan.devices.xpu_type, {**os.environ, **plan.env})
        self.round = Round(config, self.group, now=now, devices=self.devices, capabilities=self.capabilities)
        self.lines = Lines(config.folder / f"line-{os.getpid()}.sock", said)
        self.stores = StoreKeeper(config.host, self._launcher.own, store_lost)
        self._launcher.when_ready(self.stores.host_ahead)
        self._launcher.when_prepared(changed)
        self.adviser = Adviser(plan, self._spawner)
        self.profile = node_rules(plan)

    def _context(self, config: NodeConfig, changed: Callable[[], None]) -> NodeContext:
        return NodeContext(
            plan=config.plan,
            attempt=config.attempt,
            host=config.host,
            secret=config.secret,
            tls=config.tls,
            folder=config.folder,
            pids=self._pids,
            changed=changed,
            send=self._send,
            stop_workers=lambda: self.group.stop(lambda: None),
            spawner=self._spawner,
            evidence=self._evidence,
            learned=self._learned,
        )

    def _send(self, local_rank: int, message: FromAgent) -> bool:
        return self.lines.say(local_rank, message)

    async def _evidence(self, number: int) -> Evidence:
        return await self.round.evidence(number)

    def _learned(self) -> tuple[Learned, ...]:
        return self.round.learned()

    def _pids(self) -> dict[int, int]:
        return self.round.pids()

    @property
    def ready(self) -> bool:
        """Whether nothing is left to prepare for the next start of workers."""
        return self._launcher.prepared and self.stores.prepared

    def prepare(self) -> None:
        """Prepare the start of workers before there is a place for them; a later call changes nothing."""
        self._launcher.prepare(self.round.command())

    async def begin(self, cannot_work: Callable[[str], None]) -> None:
        """Get ready for the first round; `cannot_work` is called where it turns out later that nothing can be done here.

        Raises `ConfigError` where that is known at once.
        """
        if self.config.plan.devices.accelerator != CPU:
            self.devices.begin()
        await self.lines.begin()
        await self.stores.prepare()
        await self.ports.look()
        for capability in self.capabilities:
            await capability.begin()
        self.adviser.begin(cannot_work)

    async def close(self) -> None:
        """End the workers and all else that was started; leaves no process behind."""
        self.devices.close()
        self.group.kill()
        self.group.close()
        self.lines.close()
        self.stores.close()
        self._launcher.close()
        self.adviser.close()
        await self.round.finish()
        for capability in self.capabilities:
            await capability.close()
        self._reaper.close()
        self._spawner.close()


def restarts(plan: Plan) -> bool:
    """Return whether workers of this plan may be started a second time on one node."""
    return (
        plan.budgets.max_restarts > 0
        or plan.max_nodes > 1
        or (value_of(plan, "hang_detection", 0) > 1 and plan.budgets.max_hangs > 0)
    )


def launcher(config: NodeConfig, spawner: Spawner, reaper: Reaper, base: Mapping[str, str] = os.environ) -> Launcher:
    """Return what starts the workers of a node: with a zygote where workers may be started a second time. `base` is the agent's
    environment.
    """
    plan = config.plan
    if not restarts(plan):
        return Launcher(spawner, None)
    if plan.workers.start_method in ("spawn", "forkserver"):
        log.info(
            "the agent keeps no standby workers, because they need --start-method fork, but the start method is %s; each "
            "worker starts as a new process",
            plan.workers.start_method,
        )
        return Launcher(spawner, None)
    if plan.workers.virtual_local_rank:
        log.info(
            "the agent keeps no standby workers, because --virtual-local-rank gives each worker its own CUDA_VISIBLE_DEVICES, "
            "which must be set before a process starts; each worker starts as a new process"
        )
        return Launcher(spawner, None)
    return standby_launcher(
        plan,
        spawner,
        reaper,
        standbys=plan.nproc_per_node,
        learned=config.folder / _FILE,
        device=bool(plan.workers.standbys),  # it holds memory of the device: only where standbys were asked for
        base=base,
    )


class TrainingPorts:
    """The ports on this node that workers may take for themselves; none where its devices need no ports.

    The free ports are found out before each round is asked for. The coordinator takes the first range that every node has
    (`rendezvous/ports.py`).
    """

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
