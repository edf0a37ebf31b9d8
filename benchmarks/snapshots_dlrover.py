"""dlrover's snapshots in memory: a worker under dlrover-run that saves when it is told to, and says how long that took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["Dlrover"]


class Dlrover:
    """One run of `dlrover-run`, whose worker takes a turn whenever it is asked."""

    def __init__(self, launcher: Path, folder: Path, size: int, tensors: int) -> None:
        self._asked, self._told = folder / "asked", folder / "told"
        os.mkfifo(self._asked)
        os.mkfifo(self._told)
        words = [__file__, self._asked, self._told, folder / "dlrover", size, tensors]
        command = [str(launcher), "--standalone", "--nproc-per-node=1", *map(str, words)]
        self._log = (folder / "dlrover.log").open("wb")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
        self._process = subprocess.Popen(command, env=environ, stdout=self._log, stderr=self._log, start_new_session=True)
        self._to, self._of = self._asked.open("w"), self._told.open()

    def turn(self) -> float:
        """Return how many milliseconds a save in memory took."""
        return self._ask("save")

    def burst(self) -> int:
        """Return how many of five saves in memory were skipped right after one to disk, which is written behind them."""
        return int(self._ask("burst"))

    def _ask(self, what: str) -> float:
        print(what, file=self._to, flush=True)
        return float(self._of.readline())

    def close(self) -> None:
        """End it."""
        print("end", file=self._to, flush=True)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


def main(asked: str, told: str, folder: str, size: int, tensors: int) -> None:
    """Save when told to; runs in the peers' environment, which has nothing of ours."""
    import torch  # noqa: PLC0415
    from dlrover.trainer.torch.flash_checkpoint.ddp import (  # type: ignore[import-not-found]  # noqa: PLC0415
        DdpCheckpointer,
        StorageType,
    )
    from torch import distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = {f"tensor{number}": torch.rand(size // tensors // 4) for number in range(tensors)}
    checkpointer = DdpCheckpointer(folder)
    step = 0

    def save(kind: StorageType) -> tuple[float, bool]:
        nonlocal step
        step += 1
        began = time.perf_counter()
        checkpointer.save_checkpoint(step, dict(state), storage_type=kind)
        took = 1e3 * (time.perf_counter() - began)
        return took, checkpointer._engine._cached_step == step  # noqa: SLF001  it tells nobody whether it saved

    with open(asked) as questions, open(told, "w") as answers:  # noqa: PTH123  pipes
        for question in questions:
            if question.strip() == "save":
                print(save(StorageType.MEMORY)[0], file=answers, flush=True)
            elif question.strip() == "burst":
                save(StorageType.DISK)
                print(sum(not save(StorageType.MEMORY)[1] for _ in range(5)), file=answers, flush=True)
            else:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
