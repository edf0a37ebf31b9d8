"""Healthy slowness, for real (tests/live/slow_corpus.py): nothing is restarted for it."""

from __future__ import annotations

import pytest

from tests.live.slow_corpus import run_slow
from tests.live.slow_kinds import named_slow
from tests.optional import needs

needs("torch")

#: A few that others wait for in different calls; `make hang-corpus` runs all of them.
SAMPLE = ("subprocess", "receive", "two-groups", "last")


@pytest.mark.extended
def test_healthy_slowness_is_never_restarted() -> None:
    """`hang_detection` 2, the default `hang_downtime`, and a slowness far beyond the bound that was learned from the steps."""
    results = run_slow(named_slow(SAMPLE), times=1, jobs=2)

    assert sorted(one.kind.name for one in results) == sorted(SAMPLE)
    assert [one for one in results if not one.healthy] == []
    assert any(one.looked for one in results), "no slowness was long enough to be looked into: nothing was tested"
