"""What is different from one kind of device to the next: how they are counted, hidden, and spoken to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rallypoint.agent.devices import count_gpus
from rallypoint.agent.errors import ConfigError

__all__ = ["ASCEND", "CPU", "NVIDIA", "Accelerator", "accelerator", "count_npus"]

NVIDIA, ASCEND, CPU = "nvidia.com/gpu", "ascend-npu", "cpu"

_DEV = Path("/dev")
_NPU = re.compile(r"davinci\d+")


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One kind of device.

    Attributes:
        name: as `Plan.accelerator` has it.
        visible: variable that says which devices a process sees; "" where there is none.
        backend: of torch's collectives; `module` must be imported for it, "" where torch has it itself.
        device: torch's type of device.
        count: returns how many a worker with that environment would see.
        needs_ports: its collectives take ports that all nodes must have free (`rendezvous/ports.py`).
    """

    name: str
    visible: str
    backend: str
    device: str
    count: Callable[[Mapping[str, str]], int]
    module: str = ""
    needs_ports: bool = False


def count_npus(env: Mapping[str, str], dev: Path = _DEV) -> int:
    """Return the number of Ascend's NPUs that a worker would see: ASCEND_RT_VISIBLE_DEVICES, or else the nodes in /dev."""
    visible = env.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip()])
    return sum(_NPU.fullmatch(path.name) is not None for path in dev.glob("davinci*"))


_KNOWN = {
    one.name: one
    for one in (
        Accelerator(name=NVIDIA, visible="CUDA_VISIBLE_DEVICES", backend="nccl", device="cuda", count=count_gpus),
        Accelerator(
            name=ASCEND,
            visible="ASCEND_RT_VISIBLE_DEVICES",
            backend="hccl",
            device="npu",
            count=count_npus,
            module="torch_npu",
            needs_ports=True,
        ),
        Accelerator(name=CPU, visible="", backend="gloo", device="cpu", count=lambda _: 0),
    )
}


def accelerator(name: str) -> Accelerator:
    """Return the kind of that name; raises `ConfigError` naming what there is."""
    if name not in _KNOWN:
        raise ConfigError(f"accelerator {name!r}: not allowed; expected one of {', '.join(_KNOWN)}")
    return _KNOWN[name]
