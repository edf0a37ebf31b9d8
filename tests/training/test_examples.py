from __future__ import annotations

import json

import pytest

from rallypoint.training import Checkpoints
from tests.training.worlds import finish, kill, python
from tests.waiting import eventually

DIGITS = "dags_examples/train_digits.py"


def train(folder, *more):
    """Start the digits script as one plain process; its result comes to `folder/result.json`."""
    return python(DIGITS, "--checkpoint-dir", folder, "--checkpoint-every", 10, *more)


def result(path):
    return json.loads(path.read_text())


@pytest.mark.extended
def test_the_digits_are_learned_through_a_kill(tmp_path):
    """A run that is killed in the middle ends with the accuracy, and the very bits, of one that is not."""
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    first, killed = train(undisturbed), train(disturbed, "--step-seconds", 0.5)  # it would go on for 150 s
    eventually(lambda: Checkpoints(disturbed).latest(), why="a checkpoint of the run to be killed")
    kill(killed)
    finish(first)
    expected = result(undisturbed / "result.json")
    assert not (disturbed / "result.json").exists()
    finish(train(disturbed))

    actual = result(disturbed / "result.json")
    assert actual["resumed_from"] >= 10
    assert actual["weights_sha256"] == expected["weights_sha256"]
    assert actual["accuracy"] >= 0.95


@pytest.mark.extended
def test_a_script_without_our_import_recovers_too(tmp_path):
    """The plain script, killed and started again, goes on from its own checkpoint."""
    checkpoint, told = tmp_path / "plain.pt", tmp_path / "plain.json"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

    def start(*more):
        files = ("--checkpoint", checkpoint, "--result", told)
        return python("dags_examples/train_plain.py", *files, "--steps", 60, "--checkpoint-every", 5, *more, environ=alone)

    killed = start("--step-seconds", 1)  # it would go on for a minute
    eventually(checkpoint.exists, why="a checkpoint of the run to be killed")
    kill(killed)
    finish(start())

    assert 5 <= result(told)["resumed_from"] < 60
    assert result(told)["loss"] < 0.1
