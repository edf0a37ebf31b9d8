"""The command line and the environment of a worker. Pure.

The variables are torchrun's (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables) and ours
(`wire/env.py`), so a script that runs under torchrun runs here unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.accelerators import accelerator
from rallypoint.agent.devices import visible_device
from rallypoint.wire import env
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.messages import Assignment
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.progress import life_offset
from rallypoint.wire.python import run_entrypoint

__all__ = ["STARTUP", "Place", "round_env", "worker_argv", "worker_env"]

#: Stands for the local rank in a worker's arguments, as in torchrun's.
_LOCAL_RANK_MACRO = "${local_rank}"

#: Where every Python of a worker finds its start-up module; a path, since the worker's Python may have no Rallypoint.
STARTUP = str(Path(__file__).parents[2] / "training" / "startup")


@dataclass(frozen=True, kw_only=True)
class Place:
    """One worker of one round.

    Attributes:
        assignment: of its agent.
        local_rank: on its node, from 0.
        error_file: where torch's `@record` writes the first error.
        progress_file: shared memory for its reports.
        stack_file: where its Python writes its stacks when it is asked for them.
        result_file: where rank 0 leaves the job's result.
        line: socket on which its agent speaks with it; None where it does not.
        told: what else the round tells it, by variable.
    """

    assignment: Assignment
    local_rank: int
    error_file: Path
    progress_file: Path
    stack_file: Path
    result_file: Path
    line: Path | None = None
    told: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def rank(self) -> int:
        """Number in the whole world."""
        return self.assignment.first_rank + self.local_rank


def worker_argv(plan: Plan, local_rank: int, base: Mapping[str, str]) -> list[str]:
    """Return the command line; `base` may name another Python as PYTHON_EXEC, as torchrun allows."""
    args = [arg.replace(_LOCAL_RANK_MACRO, str(local_rank)) for arg in plan.args]
    python = [base.get("PYTHON_EXEC") or sys.executable, "-u"]
    if plan.entry is Entry.COMMAND:
        return [plan.entrypoint, *args]
    if plan.entry is Entry.MODULE:
        return [*run_entrypoint(plan.entrypoint, *args, python=python)]
    return [*python, plan.entrypoint, *args]


def worker_env(base: Mapping[str, str], plan: Plan, place: Place) -> dict[str, str]:
    """Return the whole environment: `base`, then the plan's own, then what the round says."""
    result = {**base, **plan.env}
    result.pop(env.SECRET, None)  # a worker is the user's code and has no business with the coordinator
    result.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    # gloo asks a store for the addresses of all ranks at once, and no longer for one after another.
    result.setdefault("GLOO_ENABLE_STORE_V2_API", "1")
    if plan.nproc_per_node > 1:
        result.setdefault("OMP_NUM_THREADS", "1")
    kind = accelerator(plan.devices.accelerator)
    if plan.workers.virtual_local_rank and kind.visible:
        result[kind.visible] = visible_device(result, place.local_rank, kind.visible)
    if kind.needs_ports:
        result.setdefault(env.TRAINING_PORT, str(plan.devices.training_port))  # where the nodes agree on none
    result["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, result.get("PYTHONPATH"))))
    return {**result, **round_env(plan, place)}


def round_env(plan: Plan, place: Place) -> dict[str, str]:
    """Return what the round says, and nothing else: all that changes for a worker that lives on into it."""
    return {**_torchrun_env(plan, place), **_our_env(plan, place), **_role_env(plan, place), **place.told}


def _role_env(plan: Plan, place: Place) -> dict[str, str]:
    """Return the place of a worker in its role, where that is one of several of a job."""
    if not plan.job:
        return {}
    assignment = place.assignment
    return {
        env.ROLE: plan.role,
        env.ROLE_RANK: str(place.rank),
        env.ROLE_SIZE: str(assignment.world_size),
        env.GROUP: str(assignment.group_rank),
        env.RESET: "0",
        env.INCARNATION: str(assignment.fence.round),
        "NODE_RANK": str(assignment.group_rank),
        "NAME": f"{plan.role}-{place.rank}",
    }


def _torchrun_env(plan: Plan, place: Place) -> dict[str, str]:
    assignment = place.assignment
    host, port = split_address(assignment.store)
    return {
        "LOCAL_RANK": "0" if plan.workers.virtual_local_rank else str(place.local_rank),
        "RANK": str(place.rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(place.rank),
        "ROLE_NAME": plan.role,
        "LOCAL_WORLD_SIZE": str(plan.nproc_per_node),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.name,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(place.error_file),
    }


def _our_env(plan: Plan, place: Place) -> dict[str, str]:
    fence = place.assignment.fence
    told = {
        env.JOB_NAME: plan.job or plan.name,
        env.ATTEMPT: str(fence.attempt),
        env.TERM: str(fence.term),
        env.ROUND: str(fence.round),
        env.LOCAL_RANK: str(place.local_rank),
        env.PROGRESS_FILE: str(place.progress_file),
        env.LIFE_OFFSET: str(life_offset(plan.nproc_per_node, place.local_rank)),
        env.STACK_FILE: str(place.stack_file),
        env.KEPT: str(place.assignment.kept),
    }
    if place.assignment.training_port:
        told[env.TRAINING_PORT] = str(place.assignment.training_port)
    if place.line is not None:
        told[env.LINE] = str(place.line)
    if place.rank == 0:
        told[env.RESULT_FILE] = str(place.result_file)
    if plan.checkpoint_dir:
        told[env.CHECKPOINT_DIR] = plan.checkpoint_dir
    return told
