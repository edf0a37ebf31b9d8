"""How the instances of a role are started: the first as programs, the next lives as forks of a zygote of the role."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.worker_env import STARTUP
from rallypoint.agent.workers.zygote.launcher import Launcher
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool, Wanted, declared
from rallypoint.wire import env
from rallypoint.wire.plan import Plan

__all__ = ["warm_launcher"]

log = logging.getLogger("rallypoint.host")


def warm_launcher(plan: Plan, learned: Path, spawner: Spawner, reaper: Reaper, *, again: bool) -> Launcher:
    """Return what starts the instances of a role; without a zygote where none is started `again`."""
    if not again or plan.workers.start_method in ("spawn", "forkserver"):
        return Launcher(spawner, None)
    startup = os.path.join(STARTUP, "sitecustomize.py")  # noqa: PTH118
    wanted = Wanted(
        standbys=1 if plan.workers.standbys is None else plan.workers.standbys,
        preload=declared((*plan.workers.preload, os.environ.get(env.PRELOAD, ""))),
        learned=learned,
        startup=startup,
    )
    return Launcher(spawner, StandbyPool(spawner, reaper, wanted), startup=startup, names=str(learned))
