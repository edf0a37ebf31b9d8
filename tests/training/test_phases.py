"""What a script is doing, told without a line of it: the real torch in one process that reads its own pulse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.training import startup
from rallypoint.training.phases import phase
from rallypoint.wire import env
from rallypoint.wire.progress import ProgressFile, life_offset
from tests.waiting import PATIENCE

SCRIPT = Path(__file__).parent / "phases_script.py"
ROOT = Path(__file__).parents[2]

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("phases")
    ProgressFile.create(folder / "progress", 1).close()
    environment = {
        **os.environ,
        env.PROGRESS_FILE: str(folder / "progress"),
        env.LIFE_OFFSET: str(life_offset(1, 0)),
        env.STACK_FILE: str(folder / "stacks"),
        "PYTHONPATH": os.pathsep.join((str(Path(startup.__file__).parent), str(ROOT))),
    }
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=120 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return {line.pop("name"): line for line in lines}


def test_a_start_lasts_until_the_third_step(found: Found) -> None:
    """The first ones warm up; the one after them is the first that counts."""
    assert found["start"] == {"phases": ["start-up", "start-up", "step"], "starts": 1, "steps": 1}


def test_what_was_waited_before_the_first_step_is_of_no_step(found: Found) -> None:
    """A process group is made, a barrier is passed: that takes longer than the step that follows it."""
    assert found["waited"] == {"out": [0, 1]}


def test_a_step_that_the_scaler_skips_is_a_sign_of_life(found: Found) -> None:
    """No optimizer is called then."""
    assert found["scaler"] == {"skipped": True, "alive": [True, True, True]}


def test_a_collective_that_raises_is_no_sign_of_life(found: Found) -> None:
    """It says that the others are gone; the rank is not in it any more."""
    assert found["failed"] == {"alive": [False, False], "raised": [True, True], "inside": 0}


def test_each_backward_pass_of_an_accumulation_is_one(found: Found) -> None:
    """Many of them lie between two steps."""
    assert found["accumulation"] == {"alive": [True, True, True]}


def test_every_optimizer_shows_life(found: Found) -> None:
    """Whichever takes a step."""
    assert found["several"] == {"alive": [True, True, True]}


def test_replays_of_a_graph_are_steps_where_no_optimizer_is_called(found: Found) -> None:
    """The first eight may be parts of a step; after a step of an optimizer they are again. The graph's answer is untouched."""
    assert found["graphs"] == {"alive": True, "steps": 13, "result": 7, "eager": True}


def test_a_wait_for_a_batch_is_told_and_a_loaders_process_tells_nothing(found: Found) -> None:
    """The first one of a pass apart: a loader starts its processes then. What these do is not what the script does."""
    phases = ["first batch", "data wait", "data wait", "data wait"]
    assert found["data"] == {"phases": phases, "counted": [True, True], "helpers": 2, "quiet": True}


def test_an_evaluation_is_told_until_the_module_trains(found: Found) -> None:
    """From `eval()` on, with all its batches."""
    inside = ["evaluation"] * 4
    assert found["evaluation"] == {"phases": inside, "inside": "evaluation", "after": "step", "visits": 1}


def test_a_teacher_is_no_evaluation(found: Found) -> None:
    """A module that is put into evaluation in each step and never trains soon says nothing any more."""
    assert found["teacher"] == {"first": "evaluation", "last": "step", "visits": 0}


def test_a_checkpoint_is_told_unless_another_thread_writes_it(found: Found) -> None:
    """`torch.save`; the thread that trains goes on meanwhile."""
    assert found["checkpoint"] == {"phases": ["checkpoint", "step"], "saved": 1, "after": "step"}


def test_a_distributed_checkpoint_is_told(found: Found) -> None:
    """`torch.distributed.checkpoint.save`."""
    assert found["dcp"] == {"saved": True, "after": "step"}


def test_a_compilation_is_told(found: Found) -> None:
    """By torch's own callbacks."""
    assert found["compile"] == {"phases": ["compile"], "compiled": 1, "after": "step"}


def test_a_script_may_tell_a_phase_itself(found: Found) -> None:
    """Until its context ends; another name is an error that says what is allowed."""
    said = "phase: 'lunch' is not allowed; expected one of data, checkpoint, evaluation, compile"
    assert found["told"] == {"inside": ["evaluation"] * 5, "after": "step", "said": said}


def test_what_lies_between_steps_is_left_out_of_how_long_they_take(found: Found) -> None:
    """Ten steps count, an evaluation and the step after it do not."""
    assert found["measured"] == {"took": True, "without": True, "out": 1}


def test_a_fork_tells_nothing(found: Found) -> None:
    """It is not the one that trains."""
    assert found["fork"] == {"quiet": True}


def test_outside_of_a_job_a_phase_is_nothing() -> None:
    """The same script runs anywhere."""
    with pytest.raises(KeyError, match="the script's own"), phase("evaluation"):
        raise KeyError("the script's own")
