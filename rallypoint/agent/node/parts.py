"""What an agent works with on its node: made together, begun together, closed together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from rallypoint.agent.accelerators import CPU
from rallypoint.agent.clock import Clock
from rallypoint.agent.linux import become_subreaper
from rallypoint.agent.node.adviser import Adviser
from rallypoint.agent.node.health.npus import meter
from rallypoint.agent.node.lines import Lines
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.profile import node_rules
from rallypoint.agent.node.round import Round
from rallypoint.agent.node.starting import launcher
from rallypoint.agent.node.training_ports import TrainingPorts
from rallypoint.agent.workers.group import WorkerGroup
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.store import StoreKeeper
from rallypoint.capabilities.base import NodeContext, node_capabilities
from rallypoint.wire.hang import Evidence
from rallypoint.wire.line import FromAgent, FromWorker
from rallypoint.wire.pulse import Learned

__all__ = ["Parts"]

#: torchrun's variable for the signals that its agent handles.
_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


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
