"""The timeline of the demo with roles, from invented events; and the example's own parts."""

from __future__ import annotations

import numpy as np
import torch

from dags_examples.demo_roles_picture import Event, draw, lives, tell
from dags_examples.rl_cartpole import LONGEST, Carts, advantages


def event(at: float, name: str, what: str, pid: int = 1, **more) -> Event:
    """Return an event."""
    role, _, rank = name.partition("/")
    return Event(at=at, role=role, rank=int(rank), incarnation=1, pid=pid, what=what, **more)


EVENTS = [
    event(101, "trainer/0", "started", 5),
    event(102, "evaluator/0", "score", 6, step=3, score=20.0),
    event(103, "trainer/0", "killed", 5),
    event(104, "trainer/0", "started", 7),
    event(105, "evaluator/0", "score", 6, step=4, score=30.0),
    event(106, "evaluator/0", "score", 6, step=9, score=480.0),
]


def test_a_killed_process_ends_where_it_was_killed():
    """Its successor lives to the end."""
    assert lives(EVENTS) == {"trainer/0": [(101, 103, True), (104, 106, False)]}


def test_the_text_has_the_kill_and_the_first_and_last_score():
    """Times are seconds since the submission."""
    text = tell(EVENTS, 100.0)

    assert "3.00 s  trainer/0 killed with SIGKILL (process 5)" in text
    assert "measured 20.0 steps after 3 updates" in text
    assert "measured 480.0 steps after 9 updates" in text
    assert "30.0" not in text


def test_the_picture_is_drawn(tmp_path):
    """A PNG of some size."""
    draw(EVENTS, 100.0, tmp_path / "a.png", goal=475)

    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_pole_that_is_pushed_to_one_side_falls_soon():
    """As in the well-known environment: after 8 to 11 pushes; one that is balanced is cut at 500 steps."""
    carts = Carts(50, seed=1)
    lengths = np.zeros(50)
    for _ in range(20):
        fell, _ = carts.step(np.ones(50))
        lengths[fell & (lengths == 0)] = carts.lengths[fell & (lengths == 0)]
    assert lengths.min() >= 8
    assert lengths.max() <= 11

    balanced, cut = Carts(20, seed=2), np.zeros(20, dtype=bool)
    for _ in range(LONGEST):
        x, speed, angle, turn = balanced.state.T
        fell, cut = balanced.step((3 * angle + turn + 0.05 * x + 0.1 * speed > 0).astype(int))
        assert not fell.any()
    assert cut.all()


def test_advantages_end_with_the_episode():
    """A fall ends the sum; an episode that was cut goes on with its value."""
    values = torch.ones(3, 1)
    fell, no = torch.tensor([[False], [True]]), torch.zeros(2, 1, dtype=torch.bool)

    assert torch.allclose(advantages(values, fell, no)[1], torch.tensor([0.01 - 1]))
    assert torch.allclose(advantages(values, no, fell)[1], torch.tensor([0.01 + 0.99 - 1]))
