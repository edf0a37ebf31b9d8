"""Who is missing, and since when, with a clock that is an argument."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import RECONNECT_WITHIN, Settings, State
from rallypoint.agent.rendezvous.peers import TAKEOVER
from rallypoint.agent.rendezvous.settings import pace_of
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.missing import MISSING_LIMIT, Absence, Missing
from rallypoint.wire.node_range import Size
from rallypoint.wire.status import JobStatus, Outcome, Verdict
from tests.agent.fakes import new_state, report

#: Three nodes, two are enough.
SOME = Settings(min_nodes=2, max_nodes=3)

#: How long an agent waits between two reports.
HOLD = 1.0


def told(state: State, now: float) -> list[tuple[int, str, float]]:
    status = rendezvous.status(state, now)
    assert len(status.missing) == status.missing_count
    return [(one.node, one.why.value, one.since) for one in status.missing]


def said(state: State, node: int, now: float, to: AgentState, **more: object) -> AgentReport:
    fields = {"round": state.fence.round if to is not AgentState.WAITING else 0, "fence": state.fence, "hold": HOLD, **more}
    return report(node, to, sequence=int(now * 1000), host=f"gpu-{node}", **fields)


def heard(state: State, node: int, now: float, to: AgentState = AgentState.RUNNING, **more: object) -> State:
    return rendezvous.receive(state, said(state, node, now, to, **more), now)


def all_heard(state: State, nodes: int, now: float, to: AgentState) -> State:
    draft = rendezvous.opened(state)
    for node in range(nodes):
        draft = rendezvous.hear(draft, said(state, node, now, to), now)
    return rendezvous.tick(rendezvous.sealed(draft), now)


def running(nodes: int = 3, settings: Settings = SOME) -> State:
    """All of so many nodes in round 1, heard at 2.0."""
    state = all_heard(new_state(settings, now=0.0), nodes, 1.0, AgentState.WAITING)
    return all_heard(state, nodes, 2.0, AgentState.RUNNING)


def test_nobody_is_missing_from_a_whole_world() -> None:
    """Of a whole world that reports, nobody is missing."""
    assert told(running(), 2.0) == []


def test_before_anybody_came_all_are_expected_since_the_coordinator_began() -> None:
    """Before anybody came all nodes are expected, since the coordinator began."""
    assert told(new_state(SOME, now=5.0), 9.0) == [(node, "expected", 5.0) for node in range(3)]


def test_who_came_is_missed_no_more() -> None:
    """Who came is missed no more; the others are, since when they were."""
    state = heard(new_state(SOME, now=5.0), 1, 6.0, AgentState.WAITING)
    assert told(state, 6.0) == [(0, "expected", 5.0), (2, "expected", 5.0)]


def test_a_report_that_is_overdue_is_told_within_two_seconds() -> None:
    """Before the lease is over: whoever stopped right after its report is told 1.5 s later, and as lost after 3 s."""
    state = running()
    for now in (2.9, 3.4):
        state = heard(heard(state, 0, now), 2, now)
    assert told(state, 3.4) == []
    assert told(state, 3.6) == [(1, "silent", 2.0)]

    state = heard(heard(state, 0, 4.4), 2, 4.4)
    state = rendezvous.tick(state, 5.0)
    assert told(state, 5.0) == [(1, "lost", 2.0)]
    assert rendezvous.status(state, 5.0).missing == (Missing(node=1, incarnation=1, host="gpu-1", why=Absence.LOST, since=2.0),)


def test_a_process_that_ends_is_told_when_it_did_not_come_back() -> None:
    """Since its connections ended, not since it spoke last."""
    state = rendezvous.disconnected(running(), "agent-1", 2.5)
    state = rendezvous.tick(state, 2.5 + RECONNECT_WITHIN)
    assert told(state, 2.6) == [(1, "lost", 2.5)]


def test_who_is_lost_stays_missing_in_the_next_round_and_until_somebody_comes() -> None:
    """A lost node is missing until another takes its place, whatever rounds go by."""
    state = rendezvous.tick(rendezvous.disconnected(running(), "agent-1", 2.5), 2.5 + RECONNECT_WITHIN)
    for node in (0, 2):
        state = heard(state, node, 2.6, AgentState.WAITING)
    for node in (0, 2):
        state = heard(state, node, 2.7)
    assert state.fence.round == 2
    assert told(state, 2.8) == [(1, "lost", 2.5)]

    state = heard(state, 1, 2.9, AgentState.WAITING, agent="another", incarnation=2)
    assert told(state, 2.9) == []


def test_who_leaves_has_left_when_it_said_so() -> None:
    """A node that said that it leaves has left since then, and is not lost when its connection ends."""
    state = heard(running(), 1, 2.4, AgentState.LEAVING)
    assert told(state, 2.4) == [(1, "left", 2.4)]

    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1", 2.5), 2.5 + RECONNECT_WITHIN)
    assert told(state, 2.6) == [(1, "left", 2.4)]


def test_a_spare_that_takes_the_place_of_a_lost_one_is_enough() -> None:
    """Slots beyond the maximum are held by nodes that wait: as many are missing as are too few."""
    two = dataclasses.replace(SOME, max_nodes=2)
    state = heard(running(2, two), 2, 2.1, AgentState.WAITING)
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1", 2.5), 2.5 + RECONNECT_WITHIN)
    assert told(state, 2.6) == []


def test_more_nodes_are_missing_since_they_are_wanted() -> None:
    """Nodes of a larger size are expected since that was wanted."""
    state = rendezvous.resized(running(), Size(min_nodes=2, max_nodes=4), SOME, 2.2)
    assert told(state, 2.3) == [(3, "expected", 2.2)]


def test_a_missing_agent_with_a_node_rank_is_read_back() -> None:
    """Its incarnation is the time of its start, in nanoseconds; a later coordinator restores the status."""
    begun = 1_790_000_000_000_000_000
    job = rendezvous.receive(new_state(SOME, now=0.0), report(0, incarnation=begun), 1.0)
    job = rendezvous.receive(job, report(0, AgentState.LEAVING, incarnation=begun, sequence=1), 2.0)
    status = codec.loads(JobStatus, codec.dumps(rendezvous.status(job, 3.0)))

    assert begun in [one.incarnation for one in status.missing]


def test_a_later_coordinator_tells_the_same_times() -> None:
    """A coordinator that takes over tells the times that the last one told."""
    state = rendezvous.tick(rendezvous.disconnected(running(), "agent-1", 2.5), 2.5 + RECONNECT_WITHIN)
    known = codec.loads(JobStatus, codec.dumps(rendezvous.status(state, 2.6)))

    later = rendezvous.new(SOME, job="digits", uid="u1", attempt=1, term=2, now=9.0, previous=known)
    assert told(later, 9.1) == []  # all members of the last world have some time to find it
    assert told(later, 10.6) == [(0, "silent", 9.0), (1, "lost", 2.5), (2, "silent", 9.0)]
    for node in (0, 2):
        later = heard(later, node, 10.7, AgentState.WAITING)
    assert told(later, 10.8) == [(1, "lost", 2.5)]
    later = rendezvous.tick(later, 9.0 + TAKEOVER)
    assert (1, "lost", 2.5) in told(later, 9.0 + TAKEOVER)


def test_nobody_is_missing_after_the_verdict() -> None:
    """After the verdict nobody is waited for."""
    over = Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="done")
    assert told(dataclasses.replace(new_state(SOME, now=0.0), verdict=over), 1.0) == []


def test_of_thousands_a_few_are_named_and_all_are_counted() -> None:
    """Of thousands a few are named and all are counted: a status is bounded."""
    status = rendezvous.status(new_state(dataclasses.replace(SOME, max_nodes=4000), now=0.0), 1.0)
    assert (len(status.missing), status.missing_count) == (MISSING_LIMIT, 4000)


@pytest.mark.parametrize("stretched", [pytest.param(False, id="few agents"), pytest.param(True, id="thousands")])
def test_thousands_take_turns_and_are_not_silent_for_that(stretched: bool) -> None:
    """Where reports are stretched because there are thousands, a later one is not silence."""
    many = 2500 if stretched else 3
    state = running(many, dataclasses.replace(SOME, max_nodes=many))
    silent = rendezvous.status(state, 3.9).missing_count
    assert silent == (0 if stretched else 3)


#: The lease of the profile `mindcluster`, and the pace that it asks for.
LONG = Settings(min_nodes=2, max_nodes=3, node_lease=15.0, report_interval=5.0)


@pytest.mark.parametrize("state", [AgentState.RUNNING, AgentState.WAITING])
def test_silence_is_told_in_time_whatever_the_lease(state: AgentState) -> None:
    """Within two seconds, also while it waits for a round; that it is lost is said when its lease is over, and not before."""
    job = running(settings=LONG) if state is AgentState.RUNNING else all_heard(new_state(LONG, now=0.0), 2, 2.0, state)
    last = rendezvous.wakes(job)
    assert last == 3.5  # somebody looks then, although nobody speaks
    job = rendezvous.tick(job, last)
    assert ("silent", 2.0) in {(why, since) for _, why, since in told(job, last)}

    later = rendezvous.wakes(job)
    assert later is not None
    assert later > last  # nobody looks again for the same
    job = rendezvous.tick(job, 16.9)
    assert "lost" not in {why for _, why, _ in told(job, 16.9)}
    job = rendezvous.tick(job, 17.0)
    assert "lost" in {why for _, why, _ in told(job, 17.0)}


def test_who_speaks_again_is_awaited_again() -> None:
    """Somebody looks for its next silence as for the first."""
    job = rendezvous.tick(running(settings=LONG), 3.5)
    for node in range(3):
        job = heard(job, node, 5.0)
    assert told(job, 5.0) == []
    assert rendezvous.wakes(job) == 6.5


@pytest.mark.parametrize(
    ("interval", "lease", "fence", "expected"),
    [
        pytest.param(1.0, 3.0, 600.0, 1.0, id="the defaults"),
        pytest.param(5.0, 15.0, 600.0, 1.0, id="mindcluster"),
        pytest.param(0.2, 15.0, 600.0, 0.2, id="as often as it is asked for"),
        pytest.param(1.0, 1.5, 600.0, 0.5, id="a short lease"),
        pytest.param(1.0, 3.0, 1.2, 0.4, id="a short fence time-out"),
    ],
)
def test_an_agent_speaks_once_a_second_at_least(interval: float, lease: float, fence: float, expected: float) -> None:
    """Whatever the lease is: more often where something shorter asks for it."""
    assert pace_of(interval, lease, fence) == pytest.approx(expected)
    assert Settings(min_nodes=1, max_nodes=1, report_interval=interval, node_lease=lease, fence_timeout=fence).pace <= expected
