"""Functions and classes that are entrypoints of jobs made by the builder."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from rallypoint.training import job_config

FOLDER = Path(os.environ.get("ROLE_JOBS_FOLDER", "."))


def report() -> None:
    """Leave a file for each rank: its configuration, its place, and the sum over the process group."""
    found = {"config": job_config(), "argv": sys.argv, "world": _ranks(), "extra": os.environ.get("EXTRA", "")}
    (FOLDER / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


def _ranks() -> int:
    """Return how many ranks add up in the process group: 1 where there is none, and torch was not imported to make one."""
    if "torch" not in sys.modules:
        return 1
    import torch
    from torch import distributed as dist

    total = torch.ones(1)
    if dist.is_initialized():
        dist.all_reduce(total)
    return int(total.item())


class Trainer:
    """An entrypoint that is a class."""

    def __init__(self) -> None:
        self.rank = os.environ["RANK"]

    def run(self) -> None:
        """Leave a file."""
        (FOLDER / f"class-{self.rank}").touch()


def exit_well() -> None:
    """End as scripts do."""
    sys.exit(0)


def fail() -> None:
    """End with a code of its own."""
    sys.exit(3)


def wait() -> None:
    """Run until the test ends the job."""
    (FOLDER / "waiting").touch()
    while not (FOLDER / "enough").exists():
        time.sleep(0.05)
