"""Optional help inside the training script: progress, process groups, checkpoints and a data order that survive a fault.

Everything here also works under plain `torchrun` and plain `python`, so a script that uses it runs anywhere unchanged.
Names are loaded on first use: importing this package, or reporting progress, does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.checkpoint.manifest import Checkpoint
    from rallypoint.training.checkpoints import Checkpoints
    from rallypoint.training.context import JobContext, current_job, job_config
    from rallypoint.training.errors import CheckpointError, StateLostError
    from rallypoint.training.groups import World, init_process_group, process_group
    from rallypoint.training.phases import phase
    from rallypoint.training.reporting import report_progress
    from rallypoint.training.reproducibility import average_in_rank_order, seed_everything, weights_digest
    from rallypoint.training.result import report_result
    from rallypoint.training.sampler import ResumableSampler
    from rallypoint.training.session import elastic
    from rallypoint.training.snapshots.snapshots import Snapshots
    from rallypoint.training.state import State
    from rallypoint.training.stopping import stop_requested

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "JobContext",
    "ResumableSampler",
    "Snapshots",
    "State",
    "StateLostError",
    "World",
    "average_in_rank_order",
    "current_job",
    "elastic",
    "init_process_group",
    "job_config",
    "phase",
    "process_group",
    "report_progress",
    "report_result",
    "seed_everything",
    "stop_requested",
    "weights_digest",
]

_ROOMS = {
    "Checkpoint": "rallypoint.checkpoint.manifest",
    "CheckpointError": "errors",
    "Checkpoints": "checkpoints",
    "JobContext": "context",
    "ResumableSampler": "sampler",
    "Snapshots": "snapshots.snapshots",
    "State": "state",
    "StateLostError": "errors",
    "World": "groups",
    "average_in_rank_order": "reproducibility",
    "current_job": "context",
    "elastic": "session",
    "init_process_group": "groups",
    "job_config": "context",
    "phase": "phases",
    "process_group": "groups",
    "report_progress": "reporting",
    "report_result": "result",
    "seed_everything": "reproducibility",
    "stop_requested": "stopping",
    "weights_digest": "reproducibility",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        room = _ROOMS[name]
        value = getattr(importlib.import_module(room if room.startswith("rallypoint.") else f"{__name__}.{room}"), name)
    else:
        value = _of_capability(name)
    globals()[name] = value
    return value


def _of_capability(name: str) -> Any:
    """Return what an optional capability offers to scripts under a name."""
    if not name.startswith("_"):
        from rallypoint.capabilities import modules  # noqa: PLC0415  most scripts need none of them

        for module in modules("worker"):
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
