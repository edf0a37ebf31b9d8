"""`recovery_worker.py` under Ray Train: `python -m benchmarks.ray_train_driver ADDRESS RUN`. It needs `ray[train]`.

Ray Train makes the process group itself, before the script; so that call of the script finds it made.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import distributed as dist

__all__ = ["main"]

SCRIPT = Path(__file__).with_name("recovery_worker.py")

#: Workers of the one node.
_WORKERS = 2


def main(address: str, run: str) -> int:
    """Train to the end, through all kills."""
    names = [name for name in os.environ if name.startswith("BENCH_")]
    variables = {**{name: os.environ[name] for name in names}, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ray.init(address=address, log_to_driver=False, logging_level="warning", runtime_env={"env_vars": variables})
    TorchTrainer(
        _train,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=_WORKERS),
        run_config=RunConfig(storage_path=f"{run}/ray-train", failure_config=FailureConfig(max_failures=100)),
    ).fit()
    return 0


def _train() -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(len(list(Path(os.environ["BENCH_RUN"]).glob("kill-*"))))
    dist.init_process_group = lambda *_, **__: None
    dist.destroy_process_group = lambda *_, **__: None
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
