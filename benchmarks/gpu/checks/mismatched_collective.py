"""A collective that one of two ranks does not call: found, told with what each rank has called, and restarted."""

from __future__ import annotations

from benchmarks.gpu.checks.hangs import CALLED, named, played
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result

__all__ = ["run"]


def run(machine: Machine) -> Result:
    """Two ranks share the device over gloo; NCCL refuses two ranks on one GPU."""
    machine.stand_in_gpu(utilization=3)
    hang = played(machine, "collective", ranks=2, backend="gloo")
    called = CALLED.findall(hang.evidence)
    groups = {one.split(" of group ")[1].split(",")[0] for one in called}
    return Result(
        name="mismatched collective",
        passed=hang.code == 0 and len(called) == 2 and len(groups) == 2 and all("not done" in one for one in called),
        figures={"found_s": hang.found, "exit_code": hang.code},
        sentence=f"found after {hang.found:.1f} s and restarted (exit code {hang.code}); {named(called)}",
        stand_ins=("tensors on the CPU",) if machine.dry else (),
    )
