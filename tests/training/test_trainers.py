"""What the adapters of other people's trainers have in common; the trainers themselves are run in tests/live."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
import torch

from rallypoint.training import reporting
from rallypoint.training.metrics import Told
from rallypoint.training.reentry import FixedState, Luggage, packed_randomness, unpack_randomness
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import METRICS_BYTES, ProgressFile, ProgressSlot


@pytest.fixture
def progress(tmp_path, monkeypatch):
    """The agent's end of this process's progress."""
    path = tmp_path / "progress.bin"
    file = ProgressFile.create(path, 1)
    monkeypatch.setenv(env.PROGRESS_FILE, str(path))
    monkeypatch.setenv(env.LOCAL_RANK, "0")
    reporting.forget()
    yield lambda: file.read(0) or ProgressSlot()
    reporting.forget()
    file.close()


def test_the_time_that_is_left_goes_by_the_steps_of_this_process(progress):
    """A training that goes on at step 100 has not done 100 steps in its first second."""
    told = Told()
    told.begin(100, 110, now=50.0)
    told.step(102, now=54.0, epoch=0.25)

    assert (progress().step, progress().metrics) == (102, {"epoch": 0.25, "total_steps": 110.0, "eta_seconds": 16.0})


def test_a_training_without_an_end_has_no_time_left(progress):
    """Nothing is made up."""
    told = Told()
    told.begin(0, 0, now=0.0)
    told.step(1, now=1.0, epoch=None)

    assert (progress().step, progress().metrics) == (1, {})


def test_numbers_that_are_logged_are_told_and_can_never_be_too_many(progress):
    """The first names that come are kept; names that a report has otherwise are not reported, and a loss that is NaN is."""
    told = Told()
    told.begin(0, 9, now=0.0)
    told.step(1, now=1.0, epoch=0.1)
    told.metrics({"loss": 0.5, "step": 4.0, "checkpoint": 1.0, "grad_norm": math.nan})
    for number in range(40):
        told.metrics({f"{'m' * 38}{number:02}": number / 3, "x" * 41: 1.0})
    told.metrics({"loss": 0.25})

    slot = progress()
    assert slot.step == 1
    assert slot.metrics["loss"] == 0.25
    assert math.isnan(slot.metrics["grad_norm"])
    assert not {"step", "checkpoint", "x" * 41} & set(slot.metrics)
    assert len(str(slot.metrics)) < METRICS_BYTES


def test_what_does_not_fit_does_not_end_the_training(progress):
    """The script's own reports may have taken the room; the step is told all the same."""
    with contextlib.suppress(WireError):
        for number in range(METRICS_BYTES):
            own: dict[str, Any] = {f"own-{number}": 0.0}
            reporting.report_progress(1, **own)
    told = Told()
    told.begin(0, 9, now=0.0)
    told.step(2, now=1.0, epoch=0.1)

    assert progress().step == 2
    assert "epoch" not in progress().metrics


def test_luggage_is_found_once():
    """Who enters a loop anew finds what was put down; who is broken off before it commits finds nothing older."""
    luggage = Luggage(lambda: {"weight": torch.ones(1)})
    assert luggage.state_dict() == {"weight": torch.ones(1)}
    assert luggage.take() is None

    luggage.load_state_dict({"weight": 2})

    assert luggage.take() == {"weight": 2}
    assert luggage.take() is None


def test_random_states_are_taken_up_by_their_own_rank_alone(monkeypatch):
    """Another rank would draw what the one that sent them draws."""
    monkeypatch.setenv("RANK", "1")
    packed = packed_randomness()
    drawn = (torch.rand(1), random.random())
    monkeypatch.setenv("RANK", "0")
    unpack_randomness(packed)
    assert torch.rand(1) != drawn[0]
    monkeypatch.setenv("RANK", "1")
    unpack_randomness(packed)
    assert (torch.rand(1), random.random()) == drawn


def test_a_loop_of_somebody_else_keeps_to_the_size_of_its_world():
    """Its global batch is its own arithmetic."""
    assert not FixedState(step=0).resizes
