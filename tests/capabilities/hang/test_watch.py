"""When a world is silent for too long, by the table, and for every order of reports and gaps."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.capabilities.hang.watch import BUSY, Limits, Sign, Watch, judge, sign_of
from rallypoint.wire.hang import HangState
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from tests.agent.fakes import report

LIMITS = Limits(downtime=60.0, startup=300.0, max_gap=10.0)
A, B = "agent-a", "agent-b"
BOTH = frozenset({A, B})


def lived(agent: str = A) -> Sign:
    return Sign(agent=agent, life=True)


def silent(watch: Watch, seconds: float, *, until: float, every: float = 5.0, agents: tuple[str, ...] = (A, B)) -> Watch:
    """Return the watch after so many seconds in which all agents report nothing."""
    now = until - seconds
    while now < until:
        now = min(until, now + every)
        for agent in agents:
            watch = judge(watch, Sign(agent=agent), frozenset(agents), LIMITS, now)
    return watch


def alive(now: float = 0.0) -> Watch:
    return judge(Watch.fresh(1, now), lived(), BOTH, LIMITS, now)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(25.0, None, id="before half of the bound: nothing"),
        pytest.param(30.0, HangState.DOUBT, id="half of the bound: a doubt"),
        pytest.param(55.0, HangState.DOUBT, id="before the bound: still a doubt"),
        pytest.param(60.0, HangState.VERDICT, id="the bound: a verdict"),
    ],
)
def test_a_doubt_comes_at_half_of_the_bound_and_a_verdict_at_all_of_it(seconds: float, expected: HangState | None) -> None:
    """Counted from the last sign of life of any rank."""
    assert silent(alive(), seconds, until=seconds).state is expected


def test_a_sign_of_life_of_one_rank_takes_everything_back() -> None:
    """A world lives as long as one of its ranks does."""
    judged = silent(alive(), 60.0, until=60.0)

    watch = judge(judged, lived(B), BOTH, LIMITS, 61.0)

    assert (watch.state, watch.quiet, watch.quiet_since) == (None, 0.0, 61.0)


def test_zero_is_off() -> None:
    """Nothing is ever doubted."""
    off = dataclasses.replace(LIMITS, downtime=0.0)
    watch = alive()
    for now in range(10_000):
        watch = judge(watch, Sign(agent=A), frozenset({A}), off, float(now))

    assert watch.state is None


def test_a_start_may_take_longer_and_whatever_happens_counts() -> None:
    """Imports, compilation, the first batch: no step is done, but the processor is busy or something is written."""
    watch = Watch.fresh(1, 0.0)
    for now in range(0, 3600, 200):
        watch = silent(watch, 199.0, until=now + 199.0)
        assert watch.state is not HangState.VERDICT
        watch = judge(watch, Sign(agent=A, activity=True), BOTH, LIMITS, now + 200.0)

    assert silent(watch, 305.0, until=4000.0).state is HangState.VERDICT


def test_after_the_first_step_only_life_counts() -> None:
    """A rank that burns its processor in a loop is not alive."""
    watch = alive()
    for now in range(0, 61, 5):
        watch = judge(watch, Sign(agent=A, activity=True), frozenset({A}), LIMITS, float(now))

    assert watch.state is HangState.VERDICT


def test_an_agent_that_says_nothing_stops_the_count() -> None:
    """It may be stopped itself while its workers train: a deadline acts only on what was seen after it."""
    watch = alive()
    for now in range(0, 3600, 5):
        watch = judge(watch, Sign(agent=A), BOTH, LIMITS, float(now))
    assert watch.state is None

    watch = judge(watch, Sign(agent=B), BOTH, LIMITS, 3600.0)

    assert watch.quiet == LIMITS.max_gap


def test_whoever_has_ended_well_is_not_waited_for() -> None:
    """The others are silent because they wait for it, or for something else; it says nothing about that any more."""
    watch = alive()
    for now in range(0, 61, 5):
        watch = judge(watch, Sign(agent=A), frozenset({A}), LIMITS, float(now))

    assert watch.state is HangState.VERDICT


@pytest.mark.parametrize("gap", [pytest.param(1e6, id="a night"), pytest.param(-1e6, id="a clock that was set back")])
def test_a_gap_in_time_expires_nothing(gap: float) -> None:
    """A machine that slept, a coordinator that was stopped: it counts as `max_gap` at the most."""
    watch = silent(alive(), 25.0, until=25.0)

    watch = silent(watch, 0.0, until=25.0 + gap)
    for agent in (A, B):
        watch = judge(watch, Sign(agent=agent), BOTH, LIMITS, 25.0 + gap)

    assert 25.0 <= watch.quiet <= 35.0


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from(["silent", "silent", "silent", "life"]), st.floats(0.0, 1000.0)),
        max_size=60,
    )
)
def test_silence_is_never_counted_longer_than_it_lasted(steps: list[tuple[str, str, float]]) -> None:
    """Whatever order, gap or loss: a verdict needs all of the bound, without life, and word of everybody at its end."""
    watch, now, since = alive(), 0.0, 0.0
    for agent, what, pause in steps:
        now += pause
        since = now if what == "life" else since
        watch = judge(watch, Sign(agent=agent, life=what == "life"), BOTH, LIMITS, now)
        assert watch.quiet <= now - since + 1e-6
        assert (watch.state is HangState.VERDICT) <= (now - since >= LIMITS.downtime)
        assert (watch.verdict_at is not None) <= (watch.doubt_at is not None)


def told(*workers: WorkerReport, round_: int = 1) -> AgentReport:
    return report(state=AgentState.RUNNING, round=round_, workers=workers)


def worker(liveness: int = 3, cpu: float = 0.0, output: int = 10, pid: int = 7, local_rank: int = 0) -> WorkerReport:
    return WorkerReport(local_rank=local_rank, pid=pid, liveness=liveness, cpu=cpu, output=output)


@pytest.mark.parametrize(
    ("before", "after", "life", "activity"),
    [
        pytest.param(told(worker()), told(worker()), False, False, id="the same again"),
        pytest.param(told(worker()), told(worker(4)), True, False, id="a step"),
        pytest.param(
            told(worker(), worker(local_rank=1)), told(worker(), worker(4, local_rank=1)), True, False, id="a step of one"
        ),
        pytest.param(told(worker()), told(worker(output=11)), False, True, id="it wrote something"),
        pytest.param(told(worker()), told(worker(cpu=BUSY)), False, True, id="it is busy"),
        pytest.param(told(worker()), told(worker(cpu=BUSY / 2)), False, False, id="its threads only watch"),
        pytest.param(told(worker()), told(worker(0, pid=8), round_=2), False, True, id="another round begins without life"),
        pytest.param(None, told(worker(0)), False, True, id="the first report"),
        pytest.param(None, told(worker(5)), True, True, id="the first report that a new coordinator hears"),
    ],
)
def test_what_two_reports_tell(before: AgentReport | None, after: AgentReport, life: bool, activity: bool) -> None:
    """A count that moved is life; everything else is activity."""
    sign = sign_of(before, after)

    assert (sign.life, sign.activity) == (life, activity)


def test_the_limits_of_a_job() -> None:
    """A start has its warm-up grace at the least; a gap is a few reports at the most."""
    limits = Limits.of(downtime=60.0, warmup=300.0, pace=1.0)

    assert (limits.downtime, limits.startup, limits.max_gap) == (60.0, 300.0, 6.0)
    assert Limits.of(downtime=1800.0, warmup=300.0, pace=1.0).startup == 1800.0
