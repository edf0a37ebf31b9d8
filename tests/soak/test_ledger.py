"""What the soak's ledger finds wrong, and what it does not; and the training whose every state is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.soak.ledger import Line, lost_steps, read, wrongs
from tests.soak.lesson import BATCH, course, exact_loss, make_data, make_model

COURSE = ("d0", "d1", "d2", "d3")


def line(what: str, step: int, round_: int = 1, *, rank: int = 0, pid: int = 7, digest: str | None = None) -> Line:
    fits = COURSE[step] if what in ("resumed", "step", "done") else ""
    digest = fits if digest is None else digest
    return Line(at=0.0, what=what, step=step, fence=(1, 1, round_), rank=rank, world=2, pid=pid, digest=digest)


GOOD = [
    line("resumed", 0),
    line("step", 1),
    line("saved", 1),
    line("step", 2),
    line("resumed", 1, 2, pid=8),
    line("step", 2, 2, pid=8),
    line("step", 3, 2, pid=8),
    line("done", 3, 2, pid=8),
]


def test_a_run_that_went_as_it_must() -> None:
    """Nothing is wrong with it, and one step was made in vain."""
    assert wrongs(GOOD, COURSE) == []
    assert lost_steps(GOOD) == [1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param([line("resumed", 1, digest="torn")], "resumed step 1 with a state that is not", id="torn"),
        pytest.param([line("step", 2, digest="d1")], "step step 2 with a state that is not", id="a step left out"),
        pytest.param([line("saved", 2), line("resumed", 1, 2)], "resumed from step 1, though step 2 was saved", id="stale"),
        pytest.param(
            [line("step", 2, 2), line("step", 2, 1)], "makes step 2, though round 2 of attempt 1 trains", id="two worlds"
        ),
        pytest.param([line("step", 1), line("step", 1, pid=8)], "two processes in one round", id="a rank twice"),
        pytest.param([line("done", 2)], "is done at step 2", id="done too early"),
    ],
)
def test_what_must_not_be_is_found(lines: list[Line], told: str) -> None:
    """One complaint about each."""
    [found] = wrongs(lines, COURSE)
    assert told in found


def test_a_save_that_was_torn_binds_nobody() -> None:
    """Until that step is saved again."""
    torn = [line("saved", 1), line("saved", 2), line("damaged", 2)]
    assert wrongs([*torn, line("resumed", 1, 2)], COURSE) == []
    assert wrongs([*torn, line("resumed", 0, 2)], COURSE)
    assert wrongs([*torn, line("resumed", 1, 2), line("saved", 2, 2), line("resumed", 1, 3)], COURSE)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Lines as `learner.py` writes them; what is not looked at may be there."""
    path = tmp_path / "ledger"
    assert read(path) == []
    path.write_text(
        '{"at": 0.0, "what": "step", "step": 1, "fence": [1, 1, 1], "rank": 0, "world": 2, "pid": 7, "digest": "d1", "x": 1}\n'
    )
    assert read(path) == [line("step", 1)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_course_is_the_same_whatever_the_number_of_ranks(ranks: int) -> None:
    """DDP adds the gradients up and divides by the number of ranks: bit by bit the gradient of one that has the whole batch."""
    model, rows = make_model(), make_data()[:BATCH]
    gradients = []
    for share in rows.chunk(ranks):
        model.zero_grad()
        exact_loss(model(share), model.weight, ranks).backward()
        assert model.weight.grad is not None
        gradients.append(model.weight.grad.clone())
    model.zero_grad()
    exact_loss(model(rows), model.weight, 1).backward()
    assert model.weight.grad is not None
    assert torch.equal(torch.stack(gradients).sum(0) / ranks, model.weight.grad)


def test_no_two_states_of_the_course_are_the_same() -> None:
    """So a state tells its step."""
    found = course(20)
    assert len(set(found)) == 21
