"""How large a batch may be, from what was measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.capabilities.tuned_batch.coordinator import Choice, line, next_batch
from rallypoint.capabilities.tuned_batch.wire import Seen

MIB = 1 << 20


def tune(begin: int, limit: int, memory: Callable[[int], int]) -> tuple[list[Seen], Choice]:
    """Follow the choices until they settle."""
    seen: list[Seen] = []
    choice = Choice(batch=begin)
    for _ in range(40):
        seen.append(Seen(batch=choice.batch, memory=memory(choice.batch)))
        choice = next_batch(seen, limit)
        if choice.settled:
            return seen, choice
    raise AssertionError(f"it does not settle: {seen}")


@pytest.mark.difference(16)
def test_two_observations_tell_what_a_sample_costs() -> None:
    """The line through them."""
    assert line([Seen(batch=10, memory=300), Seen(batch=20, memory=500)]) == (100.0, 20.0)
    assert line([Seen(batch=10, memory=300)]) is None
    assert line([]) is None


@pytest.mark.argument("auto_tunning")
def test_the_batch_grows_to_what_the_memory_holds() -> None:
    """A model of 200 MiB and 3 MiB a sample in 1 GiB: nine tenths of it are used, and not more."""
    seen, choice = tune(16, 1024 * MIB, lambda batch: (200 + 3 * batch) * MIB)

    assert choice.settled == "the memory limit is reached"
    assert 0.85 * 1024 <= 200 + 3 * choice.batch <= 0.9 * 1024
    assert max(one.memory for one in seen) <= 0.9 * 1024 * MIB
    assert len(seen) <= 8


@given(st.integers(1, 64), st.integers(0, 4096), st.integers(1, 64), st.integers(64, 16384).map(lambda n: n * MIB))
def test_a_line_never_leads_beyond_the_limit(begin: int, anyhow: int, each: int, limit: int) -> None:
    """Whatever a model costs: what is tried fits, unless the script began with more than fits."""

    def memory(batch: int) -> int:
        return (anyhow + each * batch) * MIB

    seen, choice = tune(begin, limit, memory)

    fits = memory(begin) <= 0.9 * limit
    assert not fits or all(one.memory <= 0.9 * limit + MIB for one in seen)
    assert fits or choice.batch <= begin


def test_too_large_a_batch_shrinks() -> None:
    """In proportion at first, then along the line."""
    first = next_batch([Seen(batch=100, memory=2000)], 1000)
    assert first == Choice(batch=45)
    assert next_batch([Seen(batch=100, memory=2000), Seen(batch=45, memory=1450)], 1000).batch < 45
    assert next_batch([Seen(batch=100, memory=150), Seen(batch=50, memory=125)], 125) == Choice(batch=25), (
        "half a byte a sample"
    )
    assert next_batch([Seen(batch=1, memory=2000)], 1000) == Choice(
        batch=1, settled="one sample already exceeds the available memory"
    )


def test_nobody_takes_the_batch() -> None:
    """Memory that does not follow says that the script does not look at the file: it stays as it is."""
    _, choice = tune(8, 1024 * MIB, lambda _: 100 * MIB)
    assert "the script may not apply the batch size" in choice.settled


def test_what_memory_ran_out_with_is_not_tried_again() -> None:
    """Nor anything larger."""
    seen = [Seen(batch=10, memory=100), Seen(batch=12, memory=120)]
    assert next_batch(seen, 1000).batch == 24
    assert next_batch(seen, 1000, ceiling=15) == Choice(batch=15)
    assert next_batch(seen, 1000, ceiling=12) == Choice(batch=12, settled="a larger batch ran out of memory")


def test_nothing_follows_from_nothing() -> None:
    """The caller measures first."""
    with pytest.raises(ValueError, match="there is no measurement of memory use; expected at least one"):
        next_batch([], 1000)
