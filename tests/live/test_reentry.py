"""Trainers that are entered anew in one process, at every place where they may be broken off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.agent_processes import SCRIPTS
from tests.waiting import PATIENCE


@pytest.mark.extended
@pytest.mark.parametrize("trainer", ["huggingface", "lightning"])
def test_a_training_that_was_broken_off_ends_as_an_undisturbed_one(trainer: str, tmp_path: Path) -> None:
    """In a step, an evaluation, a checkpoint or between two epochs: weights and log are the same, bit by bit."""
    script = SCRIPTS / f"reentered_{trainer}.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )

    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert len(told) > 7
    for training, result in told.items():
        name = training.split(" (")[0].removesuffix(" None")
        assert result == told[f"{name} None"], training
    assert len({json.dumps(told[name]) for name in told if name.endswith(" None")}) > 1, "the settings make a difference"
