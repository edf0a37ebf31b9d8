"""What the metrics, the status table and the publisher make of stragglers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rallypoint.agent.coordinator.publishing import gist
from rallypoint.capabilities.stragglers.report import facts, gauges
from rallypoint.capabilities.stragglers.wire import StatusSection, Straggler
from rallypoint.wire.fence import Fence
from rallypoint.wire.sections import Sections
from rallypoint.wire.status import JobState, JobStatus


def slow(rank: int, score: float = 3.0) -> Straggler:
    return Straggler(rank=rank, node=0, host="gpu-0", score=score, own=score, usual=1.0, step=score, since=5.0)


def status(*stragglers: Straggler) -> JobStatus:
    sections = Sections(StatusSection(stragglers=stragglers))
    return JobStatus(job="digits", uid="u", fence=Fence(attempt=1), state=JobState.RUNNING, sections=sections)


def test_the_slowest_ranks_have_a_metric_each_and_all_are_counted() -> None:
    """They come the slowest first; with thousands of slow ranks there are no thousands of series."""
    many = tuple(slow(rank, 9.0 - rank / 100) for rank in range(100))
    count, scores = (gauge.value for gauge in gauges(status(*many)))

    assert count == 100
    assert isinstance(scores, Mapping)
    assert (len(scores), scores["rank", "3"]) == (8, 8.97)
    assert [gauge.value for gauge in gauges(status())] == [0, {}]


def test_the_slowest_are_named_and_the_others_counted() -> None:
    """In one line; none while all ranks are as fast."""
    [(label, text)] = facts(status(*(slow(rank, 9.0 - rank) for rank in range(6))))

    assert label == "stragglers"
    assert text.startswith("rank 0 on node 0 (gpu-0) 9 times; rank 1 ")
    assert text.endswith("; and 2 more slower than the other ranks")
    assert list(facts(status())) == []


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param((slow(3), slow(1)), (slow(1, 4.5), slow(3, 2.5)), True, id="how slow"),
        pytest.param((slow(3),), (slow(1),), False, id="who is slow"),
    ],
)
def test_who_is_slow_is_written_at_once_and_how_slow_when_it_is_due(before, after, same) -> None:
    """How slow a rank is changes with each of its measurements."""
    assert (gist(status(*before)) == gist(status(*after))) is same
