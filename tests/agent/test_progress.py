"""The curve of a training: few samples, whatever its length."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.rendezvous.progress import LIMIT, few_metrics, sampled
from rallypoint.supervision.folding import STATUS_LIMIT, bounded
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentState, WorkerReport
from rallypoint.wire.status import Sample
from tests.agent.fakes import new_state, report

ONE = Settings(min_nodes=1, max_nodes=1, last_call=0.0, node_lease=1000.0)


def told(*steps: tuple[float, int]) -> tuple[Sample, ...]:
    """The samples of a round in which steps were reported at these times."""
    samples = sampled((), Sample(at=0.0, round=1, world_size=2))
    for at, step in steps:
        samples = sampled(samples, Sample(at=at, round=1, world_size=2, step=step))
    return samples


def training(*steps: int, metrics: dict[str, float] | None = None) -> State:
    """A job of one node whose worker has reported these steps, one a second."""
    state = rendezvous.receive(new_state(ONE, now=0.0), report(0), 0.0)
    for second, step in enumerate(steps, start=1):
        worker = WorkerReport(local_rank=0, pid=7, step=step, metrics=metrics or {"loss": 1 / step})
        running = report(0, AgentState.RUNNING, round=state.fence.round, fence=state.fence, workers=(worker,), sequence=second)
        state = rendezvous.receive(state, running, float(second))
    return state


def test_a_round_begins_with_a_sample_and_each_step_is_one():
    """A few steps are all kept, with their metrics and the size of the world."""
    samples = rendezvous.status(training(1, 2, 3), 9.0).samples

    assert [(s.at, s.step, s.world_size, s.round) for s in samples] == [
        (0, None, 1, 1),
        (1, 1, 1, 1),
        (2, 2, 1, 1),
        (3, 3, 1, 1),
    ]
    assert samples[-1].metrics == {"loss": 0.333333}


def test_a_step_that_is_told_again_is_no_new_sample():
    """An agent repeats its last step with every report."""
    assert [s.step for s in rendezvous.status(training(1, 1, 1, 2), 9.0).samples] == [None, 1, 2]


def test_a_new_coordinator_goes_on_with_the_curve():
    """What the one before it had told is not lost."""
    before = rendezvous.status(training(1, 2, 3), 9.0)

    after = rendezvous.new(ONE, job="digits", uid="u1", attempt=1, term=2, now=10.0, previous=before)

    assert rendezvous.status(after, 11.0).samples == before.samples


@given(st.lists(st.floats(min_value=0.001, max_value=1000), min_size=1, max_size=1500))
def test_samples_span_everything_and_stay_few(gaps):
    """Whatever the pace, the first and nearly the last are there, in order, and they never become many."""
    at, steps = 0.0, []
    for number, gap in enumerate(gaps):
        at += gap
        steps.append((at, number))
    samples = told(*steps)

    assert len(samples) <= LIMIT
    assert samples[0].at == 0.0
    assert [s.at for s in samples] == sorted(s.at for s in samples)
    assert at - samples[-1].at <= at / LIMIT


def test_a_steady_pace_is_sampled_evenly():
    """No two neighbours are much further apart than the others: a day of steps looks like an hour of them."""
    samples = told(*((float(second), second) for second in range(1, 20_000)))
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(samples)]

    assert max(gaps) <= 5 * 20_000 / LIMIT


def test_a_step_back_is_always_seen():
    """Training that goes on from a checkpoint falls back, and the curve shows it."""
    samples = told(*((float(second), second) for second in range(1, 5000)))
    fallen = sampled(samples, dataclasses.replace(samples[-1], at=samples[-1].at + 0.001, step=7))

    assert fallen[-1].step == 7


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        pytest.param(
            {"lr": 0.1, "a": 1, "b": 2, "val_loss": 3.0}, {"val_loss": 3.0, "lr": 0.1, "a": 1}, id="a loss goes first"
        ),
        pytest.param({"x" * 25: 1.0, "é": 1.0, 'a"b': 1.0, "ok": 1 / 3}, {"ok": 0.333333}, id="names of plain characters"),
    ],
)
def test_few_metrics_are_kept(metrics, kept):
    """A sample is small, so it holds few figures of six digits."""
    assert few_metrics(metrics) == kept


def test_a_status_with_a_full_curve_stays_small():
    """The samples take no more than what incidents and events leave of what is published."""
    metrics = few_metrics({f"{'m' * 23}{number}": -1.23456e-300 for number in range(9)})
    sample = Sample(at=1763776800.123, round=12_345, world_size=16_384, step=123_456_789, metrics=metrics)
    status = dataclasses.replace(rendezvous.status(training(1), 9.0), samples=(sample,) * LIMIT)

    assert len(codec.dumps(bounded(status)).encode()) <= STATUS_LIMIT // 5
