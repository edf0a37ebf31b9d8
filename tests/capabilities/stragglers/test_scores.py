"""Which rank is slower than the others: persistently, by enough, and nobody in an even run."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.capabilities.stragglers.coordinator import CALM, SLOW, TIMES, Track, measured, score
from rallypoint.wire.pulse import Pace

STEP = 0.1


def run(
    times: int, own: Callable[[int, int], float], *, ranks: int = 4, step: float = STEP, track: Track | None = None
) -> Track:
    """Return the track after so many measurements of all ranks; `own` is asked for each rank and time."""
    track = Track(round=1) if track is None else track
    begin = max((lane.window for lane in track.lanes.values()), default=0)
    for number in range(begin + 1, begin + times + 1):
        paces = {rank: Pace(window=number, steps=20, step=step, own=own(rank, number)) for rank in range(ranks)}
        track = measured(track, paces, float(number))
    return track


def slow(factor: float, rank: int = 2) -> Callable[[int, int], float]:
    return lambda which, _: 0.03 * (factor if which == rank else 1.0)


def test_a_rank_that_stays_slow_is_told_and_since_when() -> None:
    """After as many measurements as it takes, not before; its score is how many times as slow it is."""
    assert run(TIMES - 1, slow(2.0)).told == ()

    track = run(TIMES, slow(2.0))

    assert track.told == (2,)
    assert (track.lanes[2].score, track.lanes[2].slow_since, track.lanes[2].usual) == (2.0, 1.0, 0.03)


def test_of_two_ranks_the_slow_one_is_told() -> None:
    """The median of the others is the other one's."""
    assert run(TIMES, slow(2.0, rank=1), ranks=2).told == (1,)


def test_one_slow_measurement_now_and_then_is_nothing() -> None:
    """It must be slow so many times in a row."""
    assert run(60, lambda rank, number: 0.06 if rank == 2 and number % TIMES else 0.03).told == ()


def test_what_is_between_slow_and_calm_changes_nothing() -> None:
    """A straggler stays one, and who was none becomes none."""
    between = (SLOW + CALM) / 2
    told = run(TIMES, slow(2.0))

    assert run(20, slow(between)).told == ()
    assert run(20, slow(between), track=told).told == (2,)


def test_who_is_as_fast_as_the_others_again_is_told_no_more() -> None:
    """After as many measurements as it took."""
    told = run(TIMES, slow(2.0))

    assert run(TIMES - 1, slow(1.0), track=told).told == (2,)
    assert run(TIMES, slow(1.0), track=told).told == ()


def test_a_thousandth_of_a_step_holds_nobody_up() -> None:
    """Twice as long for next to nothing."""
    assert run(20, lambda rank, _: 0.0002 if rank == 2 else 0.0001).told == ()


def test_a_measurement_counts_once() -> None:
    """Until everybody was measured anew nothing changes: the very same track comes back."""
    track = run(1, slow(2.0))
    again = {rank: Pace(window=1 if rank == 3 else 2, steps=20, step=STEP, own=0.03) for rank in range(4)}

    assert measured(track, again, 9.0) is track
    assert measured(track, {0: again[0]}, 9.0) is track


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1000])
def test_nobody_is_told_in_an_even_run(ranks: int) -> None:
    """A thousand measurements with a noise of a tenth."""
    dice = random.Random(ranks)
    times = max(20, 4000 // ranks)
    track = Track(round=1)
    for number in range(1, times + 1):
        paces = {r: Pace(window=number, steps=20, step=STEP, own=max(0.0, dice.gauss(0.05, 0.005))) for r in range(ranks)}
        track = measured(track, paces, float(number))
        assert track.told == ()


def test_the_score_is_against_the_median_of_the_others() -> None:
    """One that is very slow makes nobody else fast."""
    assert score(0.03, [0.03, 0.03, 0.03, 3.0]) == (1.0, 0.03)
    assert score(0.0, [0.0, 0.0]) == (1.0, 1e-4)


@given(st.lists(st.floats(0.001, 10.0), min_size=2, max_size=30), st.data())
def test_the_median_is_of_the_others_alone(owns: list[float], data: st.DataObject) -> None:
    """Whichever rank is left out."""
    rank = data.draw(st.integers(0, len(owns) - 1))

    _, usual = score(owns[rank], sorted(owns))

    assert usual == pytest.approx(statistics.median(owns[:rank] + owns[rank + 1 :]))
