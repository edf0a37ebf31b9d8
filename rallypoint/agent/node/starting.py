"""How the workers of a node are started: whether anything will be started a second time, and so whether a zygote pays."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.worker_env import STARTUP
from rallypoint.agent.workers.zygote.launcher import Launcher
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool, Wanted, declared
from rallypoint.wire import env
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import value_of

__all__ = ["launcher", "restarts"]

log = logging.getLogger("rallypoint.zygote")

_FILE = "modules.txt"


def restarts(plan: Plan) -> bool:
    """Return whether workers of this plan may be started a second time on one node."""
    return (
        plan.budgets.max_restarts > 0
        or plan.max_nodes > 1
        or (value_of(plan, "hang_detection", 0) > 1 and plan.budgets.max_hangs > 0)
    )


def launcher(config: NodeConfig, spawner: Spawner, reaper: Reaper, base: Mapping[str, str] = os.environ) -> Launcher:
    """Return what starts the workers of a node; `base` is the agent's environment."""
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
    startup = os.path.join(STARTUP, "sitecustomize.py")  # noqa: PTH118
    wanted = Wanted(
        standbys=plan.nproc_per_node if plan.workers.standbys is None else plan.workers.standbys,
        preload=declared((*plan.workers.preload, base.get(env.PRELOAD, ""))),
        learned=config.folder / _FILE,
        device=bool(plan.workers.standbys),  # it holds memory of the device: only where standbys were asked for
        startup=startup,
    )
    return Launcher(spawner, StandbyPool(spawner, reaper, wanted), startup=startup, names=str(wanted.learned))
