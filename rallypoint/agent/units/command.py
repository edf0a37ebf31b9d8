"""The command line and the environment of one instance of a simple role. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.workers.spawner import Command
from rallypoint.agent.workers.worker_env import STARTUP, worker_argv
from rallypoint.wire import env
from rallypoint.wire.plan import Plan

__all__ = ["instance_command"]


def instance_command(
    plan: Plan, base: Mapping[str, str], told: Mapping[str, str], *, result: Path, streams: tuple[int | None, int | None]
) -> Command:
    """Return what starts an instance: `base` is the environment of its host, `told` what the supervisor says of its place."""
    variables = {**base, **plan.env}
    variables.pop(env.SECRET, None)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, variables.get("PYTHONPATH"))))
    variables.update(told)
    variables[env.RESULT_FILE] = str(result)
    if plan.checkpoint_dir:
        variables[env.CHECKPOINT_DIR] = plan.checkpoint_dir
    argv = worker_argv(plan, int(told.get("LOCAL_RANK", "0")), variables)
    out, err = streams
    return Command(argv=argv, env=variables, cwd=plan.workdir, stdout=out, stderr=err)
