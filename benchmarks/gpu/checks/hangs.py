"""Playing a hang under the real agent, and reading what its evidence says.

The evidence must name the last collective with its number, of torch's flight recorder, and how busy the GPU was, of NVML.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.machine import Machine, tail, waited

__all__ = ["BUSY", "CALLED", "Hang", "named", "played"]

SCRIPT = Path(__file__).parents[1] / "hang_worker.py"

#: Minutes after which a silence is a hang whatever was learned: a rank whose kernel never ends looks busy.
_DOWNTIME = 0.15
_ENDS, _DRY_ENDS = 38.0, 220.0

CALLED = re.compile(r"last collective (\S+ #\d+ of group \S+ (?:not )?done)")
BUSY = re.compile(r"GPU (\d+)% busy")


@dataclass(frozen=True, kw_only=True)
class Hang:
    """What became of a job that hung: seconds until the evidence was there, the evidence, exit code and log of the agent."""

    found: float
    evidence: str
    code: int
    log: str


def named(called: list[str]) -> str:
    return f"flight recorder: {'; '.join(called)}" if called else "the flight recorder said nothing"


def played(machine: Machine, way: str, *, ranks: int, backend: str) -> Hang:
    ends = _DRY_ENDS if machine.dry else _ENDS
    log, logs = machine.folder / "agent.log", machine.folder / "logs"
    flags = (
        f"--nproc-per-node={ranks}",
        "--max-restarts=2",
        "--hang-detection=2",
        "--start-method=spawn",
        f"--hang-downtime={_DOWNTIME}",
    )
    command = (*machine.agent, *flags, f"--log-dir={logs}", "--redirects=3", str(SCRIPT), str(machine.folder), way)
    process = machine.start(command, log, GPU_CHECK_BACKEND=backend)
    until = time.monotonic() + ends

    def require_running() -> None:
        if process.poll() is not None:
            raise RuntimeError(f"the agent exited with code {process.returncode}:\n{tail(log)}")

    def hung() -> float | None:
        require_running()
        files = [machine.folder / f"hung-{rank}" for rank in range(ranks)]
        texts = [file.read_text() for file in files if file.exists()]
        return max(map(float, texts)) if len(texts) == ranks and all(texts) else None

    def evidence() -> Path | None:
        require_running()
        return next((path for path in logs.rglob("hang-*.txt") if path.stat().st_size), None)

    try:
        began = waited(hung, until - time.monotonic(), lambda: f"the script did not come to its hang:\n{tail(log)}")
        path = waited(evidence, until - time.monotonic(), lambda: f"the hang was not found:\n{tail(log)}")
        found = time.time() - began
        code = process.wait(max(1.0, until - time.monotonic()))
    finally:
        process.kill()
        process.wait()
    return Hang(found=found, evidence=path.read_text(), code=code, log=tail(log))
