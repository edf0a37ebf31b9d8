from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

from rallypoint.training import report_progress, reporting
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import ProgressFile, ProgressSlot


@pytest.fixture
def slots(tmp_path, monkeypatch):
    """The progress file as the agent sees it; this process is local rank 1 of 2."""
    path = tmp_path / "progress"
    file = ProgressFile.create(path, 2)
    monkeypatch.setenv(env.PROGRESS_FILE, str(path))
    monkeypatch.setenv("LOCAL_RANK", "1")
    yield file
    file.close()


def test_a_report_reaches_the_agent(slots):
    """Step, metrics and checkpoint are in the slot of the local rank, with the time; other slots stay empty."""
    report_progress(3, loss=0.5, resumed_from=2, checkpoint="/data/step-2")

    slot = slots.read(1)
    assert (slot.step, slot.resumed_from, slot.checkpoint, slot.metrics) == (3, 2, "/data/step-2", {"loss": 0.5})
    assert slot.at > 0
    assert slots.read(0) == ProgressSlot()


def test_what_is_left_out_stays(slots):
    """Checkpoint, origin and metrics keep their last value until they are given again; liveness counts the reports."""
    report_progress(1, resumed_from=0, checkpoint="/data/a", loss=2.0, accuracy=0.5)
    report_progress(2, loss=1.0)

    slot = slots.read(1)
    assert (slot.step, slot.resumed_from, slot.checkpoint) == (2, 0, "/data/a")
    assert slot.metrics == {"loss": 1.0, "accuracy": 0.5}
    assert slot.liveness == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(torch.tensor(1.5, requires_grad=True), 1.5, id="a tensor that is still in a graph"),
        pytest.param(torch.tensor([2]), 2.0, id="a tensor of one element"),
        pytest.param(3, 3.0, id="a whole number"),
        pytest.param(math.inf, math.inf, id="infinity"),
    ],
)
def test_metrics_may_be_anything_with_one_number(slots, value, expected):
    """Numbers and tensors of one element become floats, finite or not."""
    report_progress(torch.tensor(1), loss=value)

    assert slots.read(1).metrics == {"loss": expected}


WRONG = [
    pytest.param(
        {"step": -1},
        "step: -1 is not allowed; expected a whole number from 0 to 9007199254740991",
        id="negative step",
    ),
    pytest.param({"step": 1.0}, "step: 1.0 is not allowed", id="step is a float"),
    pytest.param({"step": True}, "step: True is not allowed", id="step is a bool"),
    pytest.param({"step": torch.tensor([1, 2])}, "step: .* is not allowed", id="step is a vector"),
    pytest.param({"step": 1, "resumed_from": "0"}, "resumed_from: '0' is not allowed", id="origin is text"),
    pytest.param(
        {"step": 1, "loss": "0.5"},
        "metric loss: '0.5' is not allowed; expected a number",
        id="metric is text",
    ),
    pytest.param({"step": 1, "loss": torch.ones(2)}, "metric loss: .* is not allowed", id="metric is a vector"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_values_are_refused_anywhere(arguments, message):
    """A wrong value is an error that names it, outside Rallypoint too, so that a script fails at once and not when deployed."""
    with pytest.raises(WireError, match=message):
        report_progress(**arguments)


def test_outside_a_worker_nothing_happens(tmp_path, monkeypatch):
    """Without a progress file a right report does nothing, and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    report_progress(1, loss=0.5)

    assert list(tmp_path.iterdir()) == []


def test_a_report_that_does_not_fit_changes_nothing(slots):
    """Metrics beyond the slot's size are refused, and the slot keeps the report before."""
    many: dict[str, Any] = {f"metric_{number}": 1.0 for number in range(200)}
    report_progress(1, loss=1.0)
    with pytest.raises(WireError, match="metrics"):
        report_progress(2, **many)
    report_progress(3)

    assert (slots.read(1).step, slots.read(1).metrics) == (3, {"loss": 1.0})


def test_another_round_has_another_file(slots, tmp_path, monkeypatch):
    """A process that lives through a round reports into the new round's file."""
    report_progress(1)
    path = tmp_path / "next"
    fresh = ProgressFile.create(path, 2)
    monkeypatch.setenv(env.PROGRESS_FILE, str(path))
    report_progress(2)

    after = fresh.read(1)
    assert after is not None
    assert (slots.read(1).step, after.step) == (1, 2)
    fresh.close()


def test_steps_alone_are_told_as_all_else_is(slots):
    """Most reports are nothing but a step and take another way: what was told before stays, and every one is a sign of life."""
    report_progress(1, loss=0.5, checkpoint="/data/a")
    for step in range(2, 9):
        report_progress(step)

    slot = slots.read(1)
    assert (slot.step, slot.liveness, slot.checkpoint, slot.metrics) == (8, 8, "/data/a", {"loss": 0.5})
    with pytest.raises(WireError):
        report_progress(9, **{"x" * 2000: 1.0})  # type: ignore[arg-type]  # of what it is, only the name is wrong
    report_progress(9, loss=0.25)
    report_progress(10)
    slot = slots.read(1)
    assert (slot.step, slot.liveness, slot.checkpoint, slot.metrics) == (10, 10, "/data/a", {"loss": 0.25})
    assert slots.read(0) == ProgressSlot()


def test_a_step_after_another_went_back_is_told(slots):
    """A restart from an older step, as often as it happens."""
    for step in (5, 6, 3):
        report_progress(step)

    assert (slots.read(1).step, slots.read(1).liveness) == (3, 3)


def test_metrics_are_told_with_their_step(slots):
    """Each time, with the very step that they are of, however they were told: nothing is kept back for later."""
    report_progress(1, loss=2.0)
    for step in range(2, 6):
        report_progress(step, loss=1.0 / step)

        slot = slots.read(1)
        assert (slot.step, slot.liveness, slot.metrics) == (step, step, {"loss": 1.0 / step})


def test_names_may_come_go_and_come_again(slots):
    """A new one takes its place beside the others, one that is left out keeps its value, and none is told for another."""
    report_progress(1, loss=1.0)
    report_progress(2, loss=2.0, rate=0.5)
    report_progress(3, rate=0.25, loss=3.0)
    report_progress(4, rate=0.125)
    report_progress(5)

    slot = slots.read(1)
    assert (slot.step, slot.liveness) == (5, 5)
    assert slot.metrics == {"loss": 3.0, "rate": 0.125}


def test_a_wrong_metric_among_known_ones_changes_nothing(slots):
    """Neither the step nor the metrics before it in the same call."""
    report_progress(1, loss=1.0, rate=0.5)
    report_progress(2, loss=2.0, rate=0.5)
    with pytest.raises(WireError, match="metric rate"):
        report_progress(3, loss=3.0, rate="0.5")  # type: ignore[arg-type]  # which is what is tried

    slot = slots.read(1)
    assert (slot.step, slot.liveness, slot.metrics) == (2, 2, {"loss": 2.0, "rate": 0.5})


def test_a_whole_number_becomes_a_metric_on_any_way(slots):
    """As a number of another type does, of a name that was told before."""
    report_progress(1, loss=1.0)
    report_progress(2, loss=1.5)
    report_progress(3, loss=4)
    value: Any = torch.tensor(0.5)
    report_progress(torch.tensor(4), loss=value)

    slot = slots.read(1)
    assert (slot.step, slot.liveness, slot.metrics) == (4, 4, {"loss": 0.5})


def test_who_follows_steps_hears_of_each_once(slots):
    """With metrics or without, on any way."""
    heard: list[int] = []
    reporting.follow_steps(heard.append)
    try:
        report_progress(1)
        report_progress(2, loss=1.0)
        report_progress(3, loss=2.0)
        report_progress(4, loss=3)
        report_progress(5, checkpoint="/data/a")
    finally:
        reporting.follow_steps(None)

    assert heard == [1, 2, 3, 4, 5]


def test_threads_that_report_with_new_names_lose_none(slots):
    """A report that changes where values are must not be followed by one that still knows the old places."""
    report_progress(0, a=0.0)
    report_progress(0, a=0.0)

    def tell(name: str) -> None:
        for number in range(200):
            told: dict[str, Any] = {f"{name}{number % 20}": float(number)}
            report_progress(number, a=1.0, **told)

    threads = [threading.Thread(target=tell, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    slot = slots.read(1)
    assert slot.liveness == 402
    assert slot.metrics == {"a": 1.0} | {f"{name}{n}": 180.0 + n for name in "xy" for n in range(20)}


def test_a_turn_that_was_never_given_back_is_taken(slots):
    """A signal's exception may come right after it was taken; the reports go on, each of them."""
    report_progress(1, loss=1.0)
    report_progress(2, loss=1.0)
    reporter = reporting._quick
    assert reporter is not None
    reporter._turn.clear()

    report_progress(3, loss=2.0)
    report_progress(4, loss=3.0)

    assert (slots.read(1).step, slots.read(1).liveness, slots.read(1).metrics) == (4, 4, {"loss": 3.0})
    assert reporter._turn == [None]


def test_a_step_that_no_slot_holds_leaves_the_slot_readable(slots):
    """It is refused before anything is written: the next report is read as ever."""
    report_progress(1, loss=0.5)
    report_progress(2, loss=0.5)  # from here on the quick way is taken
    for step in (2**53, 2**63, 10**400):
        with pytest.raises(WireError, match="step: "):
            report_progress(step, loss=0.5)
    with pytest.raises(WireError, match="metric loss"):
        report_progress(3, loss=10**400)

    report_progress(3, loss=float("nan"))
    assert (slots.read(1).step, str(slots.read(1).metrics["loss"])) == (3, "nan")


def test_a_checkpoint_whose_name_is_no_utf8_is_reported(slots):
    """File systems have such names; the slot keeps their bytes."""
    report_progress(1, checkpoint="/ckpt/\udcff")

    assert slots.read(1).checkpoint == "/ckpt/\udcff"
