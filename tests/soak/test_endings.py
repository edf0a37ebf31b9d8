"""How the soak of endings spreads its kills, and what its table says."""

from __future__ import annotations

from collections import Counter

from tests.soak.endings import CELLS, Result, kills_of, table


def result(number: int, wrong: str = "", *, hung: bool = False) -> Result:
    return Result(seed=1, number=number, wrong=wrong, hung=hung, seconds=9.0, forks=2)


def test_two_hundred_kills_are_spread_evenly() -> None:
    """A hundred runs without the five lines and a hundred with them, half of each on a loaded machine, in every cell alike."""
    cells = Counter(one.cell for one in kills_of(7, 200))

    assert set(cells.values()) == {12, 13}
    for attribute, values in (("script", 2), ("machine", 2)):
        counts = Counter(getattr(one.cell, attribute) for one in kills_of(7, 200))
        assert list(counts.values()) == [100] * values
    assert len(cells) == len(CELLS) == 16


def test_a_seed_repeats_every_choice() -> None:
    """Fewer kills are the first of more; each names a rank that there is."""
    kills = kills_of(7, 200)

    assert kills[:20] == kills_of(7, 20)
    assert kills != kills_of(8, 200)
    assert all(0 <= one.rank < one.cell.ranks for one in kills)
    assert {one.early for one in kills} == {True, False}


def test_the_table_tells_runs_that_did_not_end_from_those_that_ended_otherwise() -> None:
    """A cell of which nothing was run has no line."""
    found = {0: result(0), 16: result(16, "did not end", hung=True), 1: result(1, "exited with code 1")}

    lines = table(kills_of(7, 32), found).splitlines()[2:]

    assert lines == [
        "| idle | plain | 2 | `file` | 2 | 1 | 0 | 4 |",
        "| idle | five lines | 2 | `file` | 1 | 0 | 1 | 2 |",
        "| all | | | | 3 | 1 | 1 | 6 |",
    ]
