"""Which job, round and rank this process is: the environment, read at the door."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence

__all__ = ["JobContext", "current_job", "environment_int", "job_config", "read_job"]


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """The place of one worker in its Rallypoint job.

    Attributes:
        name: the job's name.
        uid: tells the job from an earlier one of the same name; "" where the agent was started by hand.
        fence: attempt, coordinator's term and rendezvous round that this process belongs to.
        rank, local_rank, world_size: as torchrun defines them.
        restart_count: TORCHELASTIC_RESTART_COUNT of this node's agent.
        checkpoint_dir: where the job wants its checkpoints, or None when it names no folder.
    """

    name: str
    uid: str
    fence: Fence
    rank: int
    local_rank: int
    world_size: int
    restart_count: int
    checkpoint_dir: Path | None


def current_job() -> JobContext | None:
    """Return this worker's place in its job, or None outside Rallypoint; raises `WireError` for a broken environment."""
    return read_job(os.environ)


def job_config(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the `config` of this worker's job; {} where it has none, and outside Rallypoint.

    Raises:
        WireError: the variable RALLYPOINT_CONFIG does not hold a JSON object.

    """
    text = (os.environ if environ is None else environ).get(env.CONFIG, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError(f"environment variable {env.CONFIG}", text, "a JSON object")
    return found


def read_job(environ: Mapping[str, str]) -> JobContext | None:
    """Read a :class:`JobContext` out of `environ`; None when it names no job."""
    name = environ.get(env.JOB_NAME)
    if not name:
        return None
    folder = environ.get(env.CHECKPOINT_DIR)
    return JobContext(
        name=name,
        uid=environ.get(env.JOB_MARK, "").partition("/")[0],
        fence=Fence(
            attempt=environment_int(environ, env.ATTEMPT),
            term=environment_int(environ, env.TERM),
            round=environment_int(environ, env.ROUND),
        ),
        rank=environment_int(environ, "RANK"),
        local_rank=own_slot(environ),
        world_size=environment_int(environ, "WORLD_SIZE"),
        restart_count=environment_int(environ, "TORCHELASTIC_RESTART_COUNT", default=0),
        checkpoint_dir=Path(folder) if folder else None,
    )


def own_slot(environ: Mapping[str, str]) -> int:
    """Return the number of this worker on its node, which LOCAL_RANK does not say where that is a virtual one."""
    return environment_int(environ, env.LOCAL_RANK if env.LOCAL_RANK in environ else "LOCAL_RANK")


def environment_int(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    """Return variable `name` as a number of at least 0; a missing one is `default`, or an error when that is None."""
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise WireError(f"environment variable {name}", text, "a decimal number of at least 0")
    return int(text)
