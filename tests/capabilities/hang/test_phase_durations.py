"""How long a phase may be silent, by what was seen of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.capabilities.hang.phase_durations import FACTOR, RULES, bound, later, merged
from rallypoint.wire.pulse import Learned, Phase, bucket, learned_of, upper


def seen(phase: Phase = Phase.STEP, count: int = 1000, p99: float = 0.02, longest: float = 0.03, ranks: int = 0) -> Learned:
    return Learned(phase=phase, count=count, p99=p99, longest=longest, ranks=ranks)


def of(*known: Learned) -> dict[Phase, Learned]:
    return merged(known)


Known = dict[Phase, Learned]


def seconds(*phases: Phase | None, seen: Known, before: Known | None = None, ranks: int = 8) -> float:
    return bound(phases, before or {}, seen, ranks).seconds


@pytest.mark.parametrize(
    ("p99", "longest", "expected"),
    [
        pytest.param(0.02, 0.03, 4.0, id="short steps have the floor"),
        pytest.param(10.0, 11.0, 24.0, id="long ones their percentile"),
        pytest.param(0.02, 20.0, 24.0, id="a step that took longer may be taken again"),
    ],
)
def test_the_bound_of_steps(p99: float, longest: float, expected: float) -> None:
    """Told within the larger of 3 percentiles and 5 s: a fifth of that is left for the way there."""
    assert seconds(Phase.STEP, seen=of(seen(p99=p99, longest=longest))) == pytest.approx(expected)
    assert (FACTOR, RULES[Phase.STEP].floor) == pytest.approx((0.8 * 3, 0.8 * 5))


def test_what_is_not_known_has_no_bound() -> None:
    """Seen too seldom, or a rank that tells no phase: `hang_downtime` is all there is."""
    enough = RULES[Phase.STEP].enough

    assert seconds(Phase.STEP, seen=of(seen(count=enough - 1))) == math.inf
    assert seconds(Phase.STEP, seen=of(seen(count=enough))) == 4.0
    assert seconds(None, seen=of(seen())) == math.inf
    assert seconds(seen=of(seen())) == math.inf


def test_the_rank_that_may_take_longest_decides() -> None:
    """One saves while the others wait for it; an evaluation that was never seen may take as long as it likes."""
    known = of(seen(), seen(Phase.CHECKPOINT, count=2, p99=30.0, longest=30.0))

    assert seconds(Phase.STEP, Phase.CHECKPOINT, seen=known) == 72.0
    assert seconds(Phase.STEP, Phase.EVALUATION, seen=known) == math.inf
    assert bound([Phase.STEP, Phase.CHECKPOINT], {}, known, 8).phase is Phase.CHECKPOINT
    known = of(seen(), seen(Phase.DATA))
    for phases in ((Phase.STEP, Phase.DATA), (Phase.DATA, Phase.STEP)):
        assert bound(phases, {}, known, 8).phase is Phase.DATA


def test_agents_together_have_seen_the_worst_of_them() -> None:
    """Of each phase."""
    [told] = merged([seen(p99=1.0, longest=5.0, count=10), seen(p99=2.0, longest=3.0, count=20)]).values()

    assert (told.p99, told.longest, told.count) == (2.0, 5.0, 20)


def test_what_was_seen_before_holds_until_the_round_has_seen_enough() -> None:
    """With twice the time: a batch may have grown. It has seen enough when its own count says so."""
    before, few, many = of(seen(p99=10.0, longest=10.0, ranks=8)), seen(p99=12.0, count=3), seen(p99=1.0, longest=1.0)

    assert seconds(Phase.STEP, seen={}, before=before) == pytest.approx(48.0)
    assert seconds(Phase.STEP, seen=of(few), before=before) == pytest.approx(57.6)
    assert seconds(Phase.STEP, seen=of(many), before=before) == 4.0


def test_a_smaller_world_has_more_to_do() -> None:
    """Twice as much on half of the ranks; a larger one is not taken for faster."""
    before = of(seen(p99=10.0, longest=10.0, ranks=8))

    assert seconds(Phase.STEP, seen={}, before=before, ranks=4) == pytest.approx(96.0)
    assert seconds(Phase.STEP, seen={}, before=before, ranks=16) == pytest.approx(48.0)


def test_a_round_hands_on_what_it_has_seen() -> None:
    """What it has seen often enough replaces what was known; starts are counted over all rounds, and the worst is kept."""
    before = of(seen(p99=10.0, longest=60.0, ranks=8), seen(Phase.START_UP, count=1, p99=20.0, longest=20.0))
    now = of(seen(p99=1.0, longest=2.0), seen(Phase.START_UP, count=1, p99=5.0, longest=5.0), seen(Phase.DATA, count=3))

    known = later(before, now, ranks=4)

    assert (known[Phase.STEP].p99, known[Phase.STEP].ranks) == (1.0, 4)
    assert (known[Phase.START_UP].count, known[Phase.START_UP].longest) == (2, 20.0)
    assert (known[Phase.DATA].count, known[Phase.DATA].ranks) == (3, 4)
    few = later(before, of(seen(p99=30.0, count=2)), ranks=4)[Phase.STEP]
    assert (few.p99, few.count) == (30.0, 1002)


@given(st.lists(st.floats(1e-5, 3000.0), min_size=1, max_size=400))
def test_a_percentile_is_never_told_too_low_and_an_eighth_too_high_at_the_most(durations: list[float]) -> None:
    """From counts alone."""
    counts = [0] * 256
    for duration in durations:
        counts[bucket(int(duration * 1e9))] += 1
    told = learned_of(Phase.STEP, [counts[:128] + [0] * 128, [0] * 128 + counts[128:]])
    ordered = sorted(durations)
    exact = ordered[len(ordered) - 1 - len(ordered) // 100]

    assert told is not None
    assert told.count == len(durations)
    microsecond = 1e-6
    assert exact - microsecond <= told.p99 <= exact * 1.13 + 10 * microsecond
    assert ordered[-1] - microsecond <= told.longest <= ordered[-1] * 1.13 + 10 * microsecond


def test_the_longest_that_is_told_apart() -> None:
    """More than an hour; whatever takes longer counts as that."""
    assert upper(255) > 3600
    assert bucket(10**18) == 255
    assert learned_of(Phase.STEP, [[0] * 256]) is None
