"""When an agent looks at its workers, and when it says again what it saw."""

from __future__ import annotations

import itertools

import pytest

from rallypoint.agent.node.reporting import Looks


def looked(interval: float, pace: float, reports: int = 13) -> list[float]:
    """Return when workers are looked at by an agent that reports every `pace` seconds from 0 on, a little early each time."""
    looks, times = Looks(interval), [0.0, *(n * pace - 0.001 for n in range(1, reports))]
    return [round(now) for now in times if looks.due("calm", now, pace=pace, hurry=False)]


@pytest.mark.parametrize(
    ("interval", "pace", "expected"),
    [
        pytest.param(5.0, 1.0, [0, 5, 10], id="mindcluster"),
        pytest.param(1.0, 1.0, list(range(13)), id="the default"),
        pytest.param(30.0, 1.0, [0], id="launch_agent"),
        pytest.param(2.0, 2.0, list(range(0, 25, 2)), id="as often as it speaks"),
    ],
)
def test_workers_are_looked_at_once_an_interval(interval: float, pace: float, expected: list[float]) -> None:
    """However often the agent says that it lives."""
    assert looked(interval, pace) == expected


def test_what_changes_is_looked_at_at_once() -> None:
    """And from then on an interval is waited for again."""
    looks, seen = Looks(5.0), []
    for now, gist in zip(itertools.count(), ["calm"] * 3 + ["a worker ended"] * 7, strict=False):
        if looks.due(gist, float(now), pace=1.0, hurry=False):
            seen.append(now)

    assert seen == [0, 3, 8]


def test_who_is_in_doubt_sees_each_report() -> None:
    """The coordinator asks for reports in a hurry where a world may hang."""
    looks = Looks(5.0)

    assert [looks.due("calm", now / 4, pace=0.25, hurry=True) for now in range(8)] == [True] * 8
