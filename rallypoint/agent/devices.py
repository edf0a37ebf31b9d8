"""How many workers a node can take, without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rallypoint.agent.errors import ConfigError, UsageError

__all__ = ["DRIVER", "count_cpus", "count_gpus", "visible_device", "visible_numbers", "workers_per_node"]

#: Of NVIDIA's: an entry for each GPU, by its address on the PCI bus.
DRIVER = Path("/proc/driver/nvidia/gpus")


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus(env: Mapping[str, str], driver: Path = DRIVER) -> int:
    """Return the number of NVIDIA GPUs that a worker would see.

    CUDA_VISIBLE_DEVICES decides where it is set (an entry of -1 ends the list, as in CUDA); else the lines of `nvidia-smi -L`;
    else the folders of the driver.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
        return len([e for e in entries if e]) if "-1" not in entries else entries.index("-1")
    listed = _listed_gpus()
    if listed is not None:
        return listed
    return len(list(driver.iterdir())) if driver.is_dir() else 0


def visible_numbers(env: Mapping[str, str], uuids: Sequence[str]) -> list[int]:
    """Return the numbers of the GPUs that a worker sees of those with these UUIDs, in its order.

    CUDA_VISIBLE_DEVICES names them by number or by the beginning of a UUID; as in CUDA, the list ends at the first entry that
    names none of them, such as -1.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(len(uuids)))
    numbers: list[int] = []
    for entry in visible.split(","):
        number = _number(entry.strip(), uuids)
        if number is None:
            break
        numbers.append(number)
    return numbers


def _number(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    return next((number for number, uuid in enumerate(uuids) if entry and uuid.startswith(entry)), None)


def visible_device(env: Mapping[str, str], local_rank: int, variable: str = "CUDA_VISIBLE_DEVICES") -> str:
    """Return what `variable` must say for a worker to see its own device alone; raises `ConfigError` when it has none."""
    visible = env.get(variable)
    if visible is None:
        return str(local_rank)
    entries = [entry.strip() for entry in visible.split(",")]
    if local_rank >= len(entries):
        raise ConfigError(
            f"--virtual-local-rank: local rank {local_rank} has no GPU in {variable}={visible}; start fewer workers per node"
        )
    return entries[local_rank]


def _listed_gpus() -> int | None:
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(line.startswith("GPU ") for line in told.splitlines())


def workers_per_node(text: str, env: Mapping[str, str], devices: int | None = None) -> int:
    """Return the number that `--nproc-per-node` means; `devices` counts what is no GPU of NVIDIA's.

    A number; `cpu`: one per CPU; `gpu`: one per device; `auto`: one per device, or per CPU where there is none.
    Raises `UsageError` for anything else, `ConfigError` for `gpu` without one.
    """
    if text == "cpu":
        return count_cpus()
    if text in ("gpu", "auto"):
        gpus = count_gpus(env) if devices is None else devices
        if gpus == 0 and text == "gpu":
            raise ConfigError("--nproc-per-node gpu: no NVIDIA GPU is visible; expected a number, cpu or auto")
        return gpus or count_cpus()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"--nproc-per-node {text}: not allowed; expected a whole number of 1 or more, cpu, gpu or auto")
