"""What the coordinator tells of slow ranks."""

from __future__ import annotations

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.stragglers.coordinator import TIMES, Stragglers
from rallypoint.capabilities.stragglers.wire import StatusSection, Straggler
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.pulse import Pace, Phase
from tests.agent.test_rendezvous import report, say
from tests.agent.test_rendezvous import training as round_of


def training() -> State:
    return round_of(registered=(Stragglers(),))


def says(node: int, window: int, *, slow: int | None = None, ended: int | None = None) -> AgentReport:
    workers = []
    for local_rank in (0, 1):
        rank = 2 * node + local_rank
        pace = Pace(window=window, steps=20, step=0.1, own=0.06 if rank == slow else 0.03)
        workers.append(
            WorkerReport(
                local_rank=local_rank,
                pid=10,
                liveness=window,
                phase=Phase.STEP,
                pace=None if window == 0 or rank == ended else pace,
                ended=rank == ended,
            )
        )
    return report(node, AgentState.RUNNING, 1, workers=tuple(workers))


def run(state: State, first: int, last: int, **how: int) -> State:
    for window in range(first, last + 1):
        state = say(state, says(0, window, **how), says(1, window, **how), now=100.0 + window)
    return state


def told(state: State) -> tuple[Straggler, ...]:
    return StatusSection.of(rendezvous.status(state, 200.0)).stragglers


def kinds(state: State) -> list[str]:
    return [event.kind for event in state.events if event.kind.startswith("straggler")]


def test_a_slow_rank_is_in_the_status_and_in_the_story() -> None:
    """With its node, its score and since when; once, until it is as fast as the others."""
    state = run(training(), 0, TIMES, slow=3)

    [straggler] = told(state)
    assert straggler == Straggler(rank=3, node=1, host="host-1", score=2.0, own=0.06, usual=0.03, step=0.1, since=101.0)
    assert state.events[-1].detail == (
        "rank 3 on node 1 (host-1) is 2 times slower than the other ranks: own work per step 60 ms, "
        "other ranks 30 ms (step: 100 ms)"
    )
    state = run(state, TIMES + 1, 3 * TIMES, slow=3)
    assert kinds(state) == ["straggler"]

    state = run(state, 3 * TIMES + 1, 5 * TIMES)
    assert (told(state), kinds(state)) == ((), ["straggler", "straggler-over"])


def test_in_an_even_run_nobody_is_told() -> None:
    """Nor while somebody was never measured."""
    assert told(run(training(), 0, 50)) == ()
    state = training()
    for window in range(1, 20):
        state = say(state, says(0, window, slow=1), says(1, 0), now=100.0 + window)
    assert told(state) == ()


def test_who_has_ended_is_not_waited_for() -> None:
    """The others are compared among themselves."""
    assert [one.rank for one in told(run(training(), 0, TIMES, slow=3, ended=0))] == [3]


def test_a_new_round_begins_anew() -> None:
    """Its ranks may be others, and the slow one gone."""
    state = run(training(), 0, TIMES, slow=3)
    state = say(state, report(0, AgentState.WAITING, 1), report(1, AgentState.WAITING, 1), now=120.0)

    assert told(state) == ()
