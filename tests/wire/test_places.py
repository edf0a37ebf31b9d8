"""Runs of ranks are folded to a few, also runs that a script has written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.places import RankSpan, _joined, _loss, fold, spans
from tests.work import growth

RUNS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans(), st.booleans()).map(
        lambda t: (t[0], t[0] + t[1], t[2], t[3])
    ),
    max_size=14,
)


def runs(told) -> list[RankSpan]:
    return [
        RankSpan(first=rank, last=rank, count=1, least=least, most=most, culprit=culprit, waits=waits)
        for rank, (least, most, culprit, waits) in enumerate(told)
    ]


def by_hand(told: list[RankSpan], most: int) -> tuple[RankSpan, ...]:
    """Look at all neighbours for each join."""
    left: list[RankSpan] = []
    for run in sorted(told, key=lambda r: (r.culprit, r.waits, r.least, r.most)):
        if left and _loss(left[-1], run) == (False, False, 0):
            left[-1] = _joined(left[-1], run)
        else:
            left.append(run)
    while len(left) > most:
        at = min(range(len(left) - 1), key=lambda i: _loss(left[i], left[i + 1]))
        left[at : at + 2] = [_joined(left[at], left[at + 1])]
    return tuple(sorted(left, key=lambda r: (r.first, r.last)))


@given(RUNS, st.integers(1, 5))
def test_those_that_differ_least_are_joined_first(told, most):
    """The first of equals, as if all neighbours were looked at for each join; and no rank is lost."""
    folded = fold(runs(told), most)

    assert folded == (tuple(runs(told)) if len(told) <= most else by_hand(runs(told), most))
    assert sum(run.count for run in folded) == len(told)


def test_the_work_does_not_grow_with_the_square_of_the_runs():
    """A script can write 20,000 of them into its record, and each view of the job folds them: that took minutes."""

    def folding(count):
        told = runs([(rank * rank, rank * rank, False, False) for rank in range(count)])
        return lambda: fold(told, 16)

    assert growth(folding, 500) < 6


def test_ranks_that_came_equally_far_are_one_run():
    """Only where they are neighbours."""
    told = spans((rank, 0 if rank < 3 else 1, False, False) for rank in range(5))
    assert [(run.first, run.last, run.count) for run in told] == [(0, 2, 3), (3, 4, 2)]
