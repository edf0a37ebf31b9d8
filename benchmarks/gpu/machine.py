"""Where the checks run: on a CUDA device, or dry, with stand-ins on the CPU; and how the programs of both are started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu.fake_nvml import write_state

__all__ = ["Machine", "tail", "waited"]

ROOT = Path(__file__).parents[2]
_STAND_INS = Path(__file__).with_name("stand_ins")

#: Variables of a launcher around this program, which the programs of the checks must not see.
_FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine; `folder` is empty and this check's own, `dry` has the CPU stand in for a GPU."""

    dry: bool
    folder: Path

    @property
    def device(self) -> str:
        """Torch's name of the device that trains."""
        return "cpu" if self.dry else "cuda"

    @property
    def agent(self) -> tuple[str, ...]:
        """The command line of `rallypoint-agent run`; it need not be installed."""
        return (sys.executable, "-m", "rallypoint.agent", "run", "--standalone", "--nnodes=1")

    @property
    def torchrun(self) -> tuple[str, ...]:
        """The command line of torchrun."""
        return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program; in a dry run with the stand-ins for NVIDIA's library and program."""
        env = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        paths = [str(_STAND_INS), str(ROOT)] if self.dry else [str(ROOT)]
        env |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "RALLYPOINT_HOME": os.environ.get("RALLYPOINT_HOME", str(self.folder / "home")),
            "GPU_CHECK_DEVICE": self.device,
        }
        if self.dry:
            env["GPU_STAND_IN_NVML"] = str(self._nvml)
            env["GPU_STAND_IN_MEMORY"] = str(self._memory)
            env["PATH"] = os.pathsep.join((str(_STAND_INS), env.get("PATH", os.defpath)))
        return {**env, **more}

    def stand_in_gpu(self, *, utilization: int = 0, xids: tuple[tuple[int, int], ...] = (), total: int = 0) -> None:
        """Say how the GPU is that a dry run pretends to have; `total` is its memory in bytes."""
        write_state(self._nvml, utilization=utilization, uncorrected=0, xids=xids)
        self._memory.write_text(json.dumps({"used": 0, "total": total}))

    def start(self, command: tuple[str, ...], log: Path, *, keep: int | None = None, **more: str) -> subprocess.Popen[bytes]:
        """Start a program in `folder`; its output goes to `log`, and it inherits the descriptor `keep`."""
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                env=self.environment(**more),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=() if keep is None else (keep,),
            )

    def finish(self, command: tuple[str, ...], log: Path, within: float, *, keep: int | None = None, **more: str) -> int:
        """Run a program to its end and return its exit code; raises `TimeoutError` with the end of its log."""
        process = self.start(command, log, keep=keep, **more)
        try:
            return process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"{' '.join(command[1:6])} did not end within {within:.0f} s:\n{tail(log)}") from None

    @property
    def _nvml(self) -> Path:
        return self.folder / "nvml.json"

    @property
    def _memory(self) -> Path:
        return self.folder / "memory.json"


def waited(look: Callable[[], T | None], within: float, why: Callable[[], str]) -> T:
    """Return what `look` finds as soon as it finds something; raises `TimeoutError`."""
    until = time.monotonic() + within
    while (found := look()) is None:
        if time.monotonic() > until:
            raise TimeoutError(why())
        time.sleep(0.02)
    return found


def tail(log: Path, lines: int = 30) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
