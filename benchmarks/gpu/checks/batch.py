"""A batch that is tuned to the memory of the device, by the real agent: it grows, never runs out, and uses most of it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu.machine import Machine, tail
from benchmarks.gpu.result import Result

__all__ = ["run"]

SCRIPT = Path(__file__).parents[1] / "batch_worker.py"

#: Samples that the whole device would hold, so that a batch of 8 is a twentieth of it; a dry run pretends to have so much.
_SAMPLES, _DRY_TOTAL = 160, 16 << 30
_ENDS, _DRY_ENDS = 55.0, 220.0

#: Of the memory the batch must come to use so much, at the least, and no more than so much.
_LEAST, _MOST = 0.6, 0.95


def run(machine: Machine) -> Result:
    """Train with `--auto-tunning` until the batch stays."""
    total = _DRY_TOTAL if machine.dry else _device_memory()
    machine.stand_in_gpu(total=total)
    log, target = machine.folder / "agent.log", machine.folder / "batches.json"
    flags = ("--nproc-per-node=1", "--max-restarts=0", "--auto-tunning", "--start-method=spawn")
    command = (*machine.agent, *flags, str(SCRIPT), str(total // _SAMPLES), str(target))
    code = machine.finish(command, log, _DRY_ENDS if machine.dry else _ENDS)
    if code != 0 or not target.exists():
        return Result(name="tuned batch", passed=False, sentence=f"the job ended with {code}: {tail(log, 6)}")
    told = json.loads(target.read_text())
    share = told["bytes"] / total
    return Result(
        name="tuned batch",
        passed=_LEAST <= share <= _MOST and told["batches"] == sorted(told["batches"]),
        figures={"first": told["batches"][0], "last": told["batches"][-1], "share_of_memory": share},
        sentence=(
            f"the batch went {' → '.join(map(str, told['batches']))}; the last uses {share:.0%} of {total / 2**30:.0f} GiB,"
            " and memory never ran out"
        ),
        stand_ins=("nvidia-smi and the memory of a GPU",) if machine.dry else (),
    )


def _device_memory() -> int:
    import torch  # noqa: PLC0415  takes seconds, and a dry run has no use for it

    return int(torch.cuda.mem_get_info()[1])
