"""A snapshot of 8 GiB from the device: how long it blocks training beside a copy to pinned memory, and its content."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from rallypoint.training import Snapshots
from rallypoint.wire import env

__all__ = ["run"]

TENSORS = 64
_SIZE, _DRY_SIZE = 8 << 30, 64 << 20
_TURNS = 3

#: What a snapshot may cost of a plain copy on a GPU. Dry, on a CPU that has other work, the ratio says nothing.
_ALLOWED = 2.0

#: Clock cycles for which a kernel keeps a stream busy: half a second and more.
_CYCLES = 1_000_000_000


def run(machine: Machine) -> Result:
    """Take turns; then see that what lies in memory is what the device had."""
    shared = Path(tempfile.mkdtemp(prefix="rallypoint-gpu-", dir="/dev/shm"))
    os.environ[env.SNAPSHOT_DIR] = str(shared)
    try:
        return _measured(machine, _size(machine, shared))
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _size(machine: Machine, shared: Path) -> int:
    """Return the bytes of the state: two snapshots of it must fit into shared memory."""
    wanted = _DRY_SIZE if machine.dry else _SIZE
    return min(wanted, int(0.4 * shutil.disk_usage(shared).free)) // (4 * TENSORS) * 4 * TENSORS


def _measured(machine: Machine, size: int) -> Result:
    count = size // TENSORS // 4
    state = {f"tensor{number}": torch.rand(count, device=machine.device) for number in range(TENSORS)}
    plain = torch.empty(size // 4, pin_memory=not machine.dry)
    snapshots = Snapshots(state)
    snapshots.prepared()
    ours, copies = [], []
    for step in range(1, _TURNS + 1):
        copies.append(_copied(machine, state, plain, count))
        began = time.perf_counter()
        snapshots.save(step)
        ours.append(time.perf_counter() - began)
        snapshots.wait()
    expected = [state[f"tensor{number}"].sum().item() for number in (0, TENSORS - 1)]
    whole = _came_back(snapshots, state, expected)
    ordered = _behind_the_stream(machine, snapshots, state)
    snapshots.close()
    ratio = statistics.median(took / copy for took, copy in zip(ours, copies, strict=True))
    return Result(
        name="snapshot",
        passed=whole and ordered and (machine.dry or ratio <= _ALLOWED),
        figures={
            "gib": size / 2**30,
            "blocks_s": statistics.median(ours),
            "pinned_copy_s": statistics.median(copies),
            "times_the_copy": ratio,
        },
        ratio=1 / ratio,
        sentence=(
            f"{size / 2**30:.2f} GiB block training for {statistics.median(ours):.3f} s, {ratio:.2f} times a copy to"
            f" pinned memory;"
            f" {'the content is right' if whole else 'WHAT CAME BACK IS WRONG'},"
            f" {'and' if ordered else 'BUT NOT'} that of a stream of the script's own"
        ),
        stand_ins=(f"a copy of {size >> 20} MiB within the memory of the CPU",) if machine.dry else (),
    )


def _copied(machine: Machine, state: dict[str, torch.Tensor], plain: torch.Tensor, count: int) -> float:
    """Return the seconds of a plain copy."""
    if not machine.dry:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for number, tensor in enumerate(state.values()):
        plain[number * count : (number + 1) * count].copy_(tensor, non_blocking=True)
    if not machine.dry:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _came_back(snapshots: Snapshots, state: dict[str, torch.Tensor], expected: list[float]) -> bool:
    for tensor in state.values():
        tensor.zero_()
    loaded = snapshots.load()
    found = [state[f"tensor{number}"].sum().item() for number in (0, TENSORS - 1)]
    return loaded == _TURNS and found == expected


def _behind_the_stream(machine: Machine, snapshots: Snapshots, state: dict[str, torch.Tensor]) -> bool:
    """Return whether a snapshot has what a stream of the script's own has still to compute when it is taken."""
    first = state["tensor0"]
    if machine.dry:
        first.fill_(7.0)
        snapshots.save(_TURNS + 1)
    else:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(_CYCLES)  # noqa: SLF001  as in hang_worker.py
            first.fill_(7.0)
            snapshots.save(_TURNS + 1)
    snapshots.wait()
    first.zero_()
    return snapshots.load() == _TURNS + 1 and bool((state["tensor0"] == 7.0).all())
