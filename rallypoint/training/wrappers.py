"""What DDP and FSDP2 must be told when the group under them is another one, and which of them cannot live through that."""

# ruff: noqa: SLF001  what torch offers for this is private to it
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from rallypoint.training.rounds import Rounds

__all__ = ["is_sharded", "refit", "why_not"]


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Return whether some parameter is one of which this rank has a part only."""
    return any(isinstance(parameter, DTensor) for module in modules for parameter in module.parameters(recurse=False))


def why_not(modules: Iterable[nn.Module], rounds: Rounds) -> str:
    """Return what keeps this process from living through a round, "" when nothing does."""
    if rounds.subgroups:
        return f"the script has created {rounds.subgroups} process groups; only the default group can be replaced"
    if any(isinstance(module, DistributedDataParallel) and not hasattr(module, "_ddp_init_helper") for module in modules):
        return "this version of torch cannot rebuild the reducer of a DistributedDataParallel"
    if any(isinstance(module, FSDPModule) and not hasattr(module, "reset_iter_state") for module in modules):
        return "this version of torch cannot reset an FSDP2 module after a failed step; it requires torch 2.13"
    return ""


def refit(modules: Iterable[nn.Module]) -> None:
    """Let the modules forget the step that was broken, and be as they were when they were wrapped."""
    for module in modules:
        for parameter in module.parameters(recurse=False):
            parameter.grad = None  # of the broken step; the next one may add to it
        if isinstance(module, DistributedDataParallel):
            _build_reducer(module)
        elif isinstance(module, FSDPModule):
            _forget_step(module)


def _build_reducer(module: DistributedDataParallel) -> None:
    """Give a DDP module a reducer as new as that of a process that has just started.

    After its first step a reducer lays its buckets out in the order in which gradients came. One rank that has done so and one
    that has not would add up gradients of different parameters, and nobody would notice.
    """
    parameters, sparse = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    module._has_rebuilt_buckets = False
    module._ddp_init_helper(parameters, sparse, names, module.static_graph)
    logger: Any = module.logger
    if module.static_graph:
        module.reducer._set_static_graph()
        logger._set_static_graph()
    for hook, told in module._comm_hooks:
        dist._register_comm_hook(module.reducer, told, hook)  # type: ignore[attr-defined]


def _forget_step(module: FSDPModule) -> None:
    """Bring an FSDP2 module, and all below it, to where it is between two steps."""
    state = module._get_fsdp_state()
    if not state._is_root:  # the root does it for all; who has not run yet has none
        return
    for group in (group for each in state._state_ctx.all_states for group in each._fsdp_param_groups):
        result = group._all_gather_result
        if result is not None and isinstance(result.all_gather_work, dist.Work) and _has_failed(result.all_gather_work):
            group._all_gather_result = None  # nothing came of it, and to wait for it raises
    module.reset_iter_state()


def _has_failed(work: dist.Work) -> bool:
    try:
        work.wait()
    except RuntimeError:
        return True
    return False
