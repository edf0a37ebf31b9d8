"""A kernel that never ends, before a collective over NCCL: found, told with how busy the GPU is, and restarted."""

from __future__ import annotations

from benchmarks.gpu.checks.hangs import BUSY, CALLED, named, played
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result

__all__ = ["run"]


def run(machine: Machine) -> Result:
    """One rank, over NCCL: its collective waits behind a kernel that never ends."""
    machine.stand_in_gpu(utilization=97)
    hang = played(machine, "kernel", ranks=1, backend="gloo" if machine.dry else "nccl")
    called, busy = CALLED.findall(hang.evidence), max(map(int, BUSY.findall(hang.evidence)), default=0)
    recorded = machine.dry or any(one.endswith("not done") for one in called)
    return Result(
        name="endless kernel",
        passed=hang.code == 0 and busy >= 50 and recorded,
        figures={"found_s": hang.found, "gpu_busy_percent": busy, "exit_code": hang.code},
        sentence=f"found after {hang.found:.1f} s and restarted (exit code {hang.code}); GPU {busy} % busy; {named(called)}",
        stand_ins=("an endless product on the CPU", "gloo for NCCL", "NVML") if machine.dry else (),
    )
