"""From the SIGKILL of a rank to the first step that the device has done after it: ours beside torchrun, in turn.

Two ranks share the device over gloo, since NCCL refuses two ranks on one GPU; and one rank trains alone over NCCL.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.machine import Machine, tail
from benchmarks.gpu.result import Result
from benchmarks.recovery_marks import Recovery, read_marks, recoveries

__all__ = ["run"]

SCRIPT = Path(__file__).parents[1] / "train_worker.py"

_TORCHRUN = "torchrun"
_NOTHING: dict[str, Sequence[float]] = {"detect": (), "stop": (), "rendezvous": ()}


@dataclass
class _Case:
    """One way to run the script, and what its launches gave so far."""

    name: str
    ranks: int
    backend: str
    flags: tuple[str, ...] = ()
    five_lines: bool = False
    found: list[Recovery] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def peer(self) -> bool:
        return self.name.startswith(_TORCHRUN)

    @property
    def median(self) -> float:
        return statistics.median(one.total for one in self.found) if self.found else float("nan")


def run(machine: Machine) -> Result:
    """Let the cases take turns."""
    machine.stand_in_gpu()
    cases = _cases(machine)
    turns, kills, first = (1, 1, 2.0) if machine.dry else (2, 2, 6.0)
    for turn in range(turns):
        for number, case in enumerate(cases):
            _launch(machine, case, machine.folder / f"launch-{turn}-{number}", kills=kills, first=first)
            last = f"{case.median:.3f} s" if case.found else "-"
            print(f"  {case.name}: {last}", file=sys.stderr, flush=True)
    wrong = [f"{case.name}: {text}" for case in cases for text in case.wrong]
    whole = not wrong and all(len(case.found) == turns * kills for case in cases)
    # One kill on a CPU that has other work, before a zygote is ready, says nothing about speed.
    ratios = {} if machine.dry else _ratios(cases)
    figures = {f"{case.name} (s)": round(case.median, 4) for case in cases if case.found}
    figures |= {f"{name} (times faster than torchrun)": round(ratio, 2) for name, ratio in ratios.items()}
    told = ["every kill was recovered and every launch ended with 0"]
    told += [f"{name} {ratio:.1f} times as fast as torchrun" for name, ratio in ratios.items()]
    return Result(
        name="recovery",
        passed=whole and all(ratio > 1 for ratio in ratios.values()),
        figures=figures,
        ratio=min(ratios.values(), default=None),
        sentence="; ".join(wrong or told),
        stand_ins=("training on the CPU", "gloo for NCCL") if machine.dry else (),
    )


def _cases(machine: Machine) -> list[_Case]:
    shared = "gloo"
    alone = "gloo" if machine.dry else "nccl"
    cases = [
        _Case(name=_TORCHRUN, ranks=2, backend=shared),
        _Case(name="ours", ranks=2, backend=shared),
        _Case(name="ours, warm device", ranks=2, backend=shared, flags=("--standby=2",)),
        _Case(name="ours, five lines", ranks=2, backend=shared, five_lines=True),
        _Case(name=f"{_TORCHRUN}, one rank {alone}", ranks=1, backend=alone),
        _Case(name=f"ours, one rank {alone}", ranks=1, backend=alone, flags=("--standby=1",)),
    ]
    # Each rank imports torch, and a dry run is to be short: one launch of each launcher.
    return [case for case in cases if not machine.dry or (case.peer and case.ranks == 1) or case.five_lines]


def _ratios(cases: Sequence[_Case]) -> dict[str, float]:
    peers = {case.ranks: case.median for case in cases if case.peer and case.found}
    ours = [case for case in cases if not case.peer and case.found and case.ranks in peers]
    return {case.name: peers[case.ranks] / case.median for case in ours}


def _launch(machine: Machine, case: _Case, folder: Path, *, kills: int, first: float) -> None:
    """Run one launch and add what it gave."""
    folder.mkdir()
    launcher = machine.torchrun if case.peer else machine.agent
    flags = (f"--nproc-per-node={case.ranks}", f"--max-restarts={kills + 5}", *case.flags)
    variables = {
        "GPU_CHECK_RUN": str(folder),
        "GPU_CHECK_KILLS": str(kills),
        "GPU_CHECK_FIRST": str(first),
        "GPU_CHECK_BACKEND": case.backend,
        "GPU_CHECK_FIVE_LINES": str(int(case.five_lines)),
        # Without it gloo's ranks may read the address of a dead one, and torchrun hangs.
        **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if case.peer else {}),
    }
    log = folder / "launcher.log"
    try:
        code = machine.finish((*launcher, *flags, str(SCRIPT)), log, 120.0 if machine.dry else 45.0, keep=None, **variables)
    except (TimeoutError, subprocess.SubprocessError) as error:
        case.wrong.append(str(error).splitlines()[0])
        code = 0
    case.found += recoveries(read_marks(folder), _NOTHING, workers=case.ranks)
    if code != 0:
        case.wrong.append(f"ended with {code}: {tail(log, 4)}")
