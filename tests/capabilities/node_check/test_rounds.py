"""The check as the rendezvous makes it: a dialogue of reports and tasks, with time as a number."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.capabilities.node_check.check_run import ECHO, SLACK
from rallypoint.capabilities.node_check.coordinator import NodeChecks
from rallypoint.capabilities.node_check.wire import PlanSection, ReplySection, StatusSection
from rallypoint.wire import codec
from rallypoint.wire.check import CheckReport, CheckState, CheckTask, NodeCheck, NodeVerdict, ProbeState
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Answer, Cause
from rallypoint.wire.messages import SENT_AWAY, AgentReport, AgentState, Assignment, Continue, Stop
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus, Outcome

FOUR = Settings(min_nodes=2, max_nodes=4, last_call=5.0, node_lease=10_000.0)
CHECK = PlanSection(check_level=1, check_timeout=60.0)
CHECKED = (NodeChecks(CHECK),)

#: By node: what its probe says; an exception of a partner is what the others say.
FINE = CheckReport(store="", state=ProbeState.OK, compute=1.0, transfer=1.0, moved=100, latency=0.1)
LOST = CheckReport(store="", state=ProbeState.FAILED, error="Connection closed by peer")
BROKEN = CheckReport(store="", state=ProbeState.FAILED, error="CUDA error: uncorrectable ECC error", own=True, compute=0.0)
SLOW = dataclasses.replace(FINE, compute=5.0)


def report(node: int, said: CheckReport | None = None, incarnation: int = 1, **more: object) -> AgentReport:
    offered = CheckReport(store=f"host-{node}:{2000 + node}")
    fields: dict[str, object] = {
        "job": "digits",
        "fence": Fence(attempt=1, term=1),
        "node": node,
        "incarnation": incarnation,
        "agent": f"agent-{node}.{incarnation}",
        "host": f"host-{node}",
        "local_world_size": 2,
        "store": f"host-{node}:1000",
        "state": AgentState.WAITING,
        "check": offered if said is None else dataclasses.replace(said, store=offered.store),
    }
    return build(AgentReport, **{**fields, **more})


def say(state: State, *reports: AgentReport, now: float = 0.0) -> State:
    for one in reports:
        assert rendezvous.refusal(state, one) is None
        state = rendezvous.receive(state, one, now)
    return state


def start(settings: Settings = FOUR, nodes: int = 4, now: float = 0.0, *, check: PlanSection = CHECK) -> State:
    state = rendezvous.new(settings, job="digits", uid="u1", attempt=1, term=1, now=now, registered=(NodeChecks(check),))
    return say(state, *(report(node) for node in range(nodes)), now=now)


def asked(state: State, node: int, incarnation: int = 1) -> CheckTask | None:
    reply = rendezvous.answer(state, f"agent-{node}.{incarnation}")
    return ReplySection.of(reply).check if isinstance(reply, Continue) else None


def play(state: State, saying: dict[int, CheckReport], now: float = 1.0, incarnations: dict[int, int] | None = None) -> State:
    """Let every node that is asked answer, round after round: FINE, or what is told of it; a partner of BROKEN is LOST."""
    kinds, asks = incarnations or {}, 0
    while True:
        tasks = {n: t for n in range(9) if (t := asked(state, n, kinds.get(n, 1))) is not None}
        if not tasks:
            return state
        asks += 1
        assert asks < 20
        groups: dict[str, list[int]] = {}
        for node, task in tasks.items():
            groups.setdefault(task.store, []).append(node)
        for group in groups.values():
            failing = any(saying.get(node, FINE).state is ProbeState.FAILED for node in group)
            for node in group:
                said = saying.get(node, FINE)
                said = LOST if failing and said.state is ProbeState.OK else said
                said = dataclasses.replace(said, term=tasks[node].term, number=tasks[node].number)
                state = say(state, report(node, said, kinds.get(node, 1)), now=now)


def later(state: State) -> State:
    """Let the last call go by: a replacement had its time to come."""
    return rendezvous.tick(state, 20.0)


def told(state: State) -> JobStatus:
    status = rendezvous.status(state, 9.0)
    return codec.loads(JobStatus, codec.dumps(status))


def check_of(status: JobStatus) -> NodeCheck:
    check = StatusSection.of(status).check
    assert check is not None
    return check


def test_nodes_are_checked_in_pairs_before_they_are_given_a_round() -> None:
    """The tasks name the pair's store, the ranks and the time that they have."""
    state = start()
    tasks = [asked(state, node) for node in range(4)]

    assert [(t.store, t.group_rank, t.first_rank, t.world_size, t.limit) for t in tasks if t is not None] == [
        ("host-0:2000", 0, 0, 4, 60.0),
        ("host-0:2000", 1, 2, 4, 60.0),
        ("host-2:2002", 0, 0, 4, 60.0),
        ("host-2:2002", 1, 2, 4, 60.0),
    ]
    running = told(state)
    assert (running.state, running.world) == (JobState.FORMING, ())
    assert check_of(running).state is CheckState.RUNNING
    state = play(state, {})

    assert all(isinstance(rendezvous.answer(state, f"agent-{n}.1"), Assignment) for n in range(4))
    check = StatusSection.of(told(state)).check
    assert check is not None
    assert (check.state, check.rounds, check.reason) == (CheckState.PASSED, 1, "before the first round")
    assert [one.verdict for one in check.nodes] == [NodeVerdict.GOOD] * 4
    assert [(link.nodes, link.bandwidth) for link in check.links] == [((0, 1), 100.0), ((2, 3), 100.0)]


def test_who_has_begun_is_not_asked_again() -> None:
    """The answer is repeated until a report says that it was heard, and then kept back."""
    state = start()
    task = asked(state, 0)
    assert task is not None
    assert asked(state, 0) == task
    begun = CheckReport(store="", state=ProbeState.RUNNING, term=task.term, number=task.number)

    state = say(state, report(0, begun))

    assert rendezvous.answer(state, "agent-0.1") is None


def test_without_a_check_level_nobody_is_asked() -> None:
    """And a round is closed at once."""
    state = start(check=PlanSection())
    assert state.state is JobState.RUNNING
    assert StatusSection.of(told(state)).check is None


def test_a_node_at_fault_is_sent_away_and_its_host_is_named() -> None:
    """The others train; the incident asks for another machine, which is what a supervisor keeps off by."""
    state = later(play(start(), {1: BROKEN}))

    away = rendezvous.answer(state, "agent-1.1")
    assert isinstance(away, Stop)
    assert away.verdict.reason == SENT_AWAY
    assert "did not pass the node check (fault): CUDA error: uncorrectable ECC error" in away.verdict.message
    status = told(state)
    assert (status.state, [m.node for m in status.world]) == (JobState.RUNNING, [0, 2, 3])
    incident = status.incidents[0]
    assert (incident.cause, incident.answer) == (Cause.NODE, Answer.RETRY_ELSEWHERE)
    assert incident.culprit is not None
    assert incident.culprit.host == "host-1"
    assert [one.node for one in check_of(status).named(NodeVerdict.FAULT)] == [1]


def test_the_replacement_is_checked_with_the_others_before_it_trains() -> None:
    """It is new; the node that was lost by the check itself is no reason for another one."""
    state = play(start(dataclasses.replace(FOUR, min_nodes=4)), {1: BROKEN})
    assert state.state is JobState.FORMING
    state = say(state, report(1, incarnation=2), now=20.0)

    assert asked(state, 1, 2) is not None
    state = play(state, {}, now=21.0, incarnations={1: 2})
    status = told(state)

    assert [m.incarnation for m in status.world] == [1, 2, 1, 1]
    assert (check_of(status).number, check_of(status).reason) == (
        2,
        "after a node was lost",
    ) or check_of(status).reason == "new nodes: 1"


def running(state: State, now: float = 30.0) -> State:
    """Let every node of the world train."""
    return say(
        state,
        *(report(m.node, incarnation=m.incarnation, state=AgentState.RUNNING, round=state.fence.round) for m in state.world),
        now=now,
    )


def test_after_a_lost_node_the_rest_is_checked_and_after_a_lost_process_it_is_not() -> None:
    """A fault of a process says nothing of machines that were checked already."""
    state = running(play(start(), {}))
    again = say(state, *(report(n, round=1) for n in range(4)), now=40.0)
    assert again.fence.round == 2
    state = rendezvous.disconnected(state, "agent-3.1", 50.0)
    state = rendezvous.tick(state, 60.0)

    state = say(state, *(report(n, round=1) for n in range(3)), now=61.0)

    check = StatusSection.of(told(state)).check
    assert check is not None
    assert (check.state, check.reason) == (CheckState.RUNNING, "after a node was lost")
    state = play(state, {}, now=62.0)
    assert (state.state, len(state.world)) == (JobState.RUNNING, 3)


@pytest.mark.parametrize("exclude", [True, False])
def test_a_straggler_is_told_and_sent_away_only_where_that_is_asked_for(*, exclude: bool) -> None:
    """It works; whether that is enough is the user's to say."""
    state = later(play(start(check=dataclasses.replace(CHECK, exclude_straggler=exclude)), {2: SLOW}))

    status = told(state)
    slow = check_of(status).named(NodeVerdict.STRAGGLER)
    assert [(one.node, one.reason) for one in slow] == [(2, "compute took 5.0 times the median of 1e+03 ms")]
    assert [m.node for m in status.world] == ([0, 1, 3] if exclude else [0, 1, 2, 3])
    assert len(status.incidents) == int(exclude)


def test_where_no_two_nodes_work_together_the_attempt_ends() -> None:
    """It is nobody's machine: the image, the network, a setting."""
    state = play(start(nodes=4), dict.fromkeys(range(4), LOST))

    verdict = told(state).verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, "NodeCheckFailed")
    assert (
        "no two of the 4 nodes can exchange data; first error: node 0 on host-0: Connection closed by peer" in verdict.message
    )


def test_a_silent_probe_has_failed_when_its_time_is_over() -> None:
    """The deadline is the core's own: it wakes up for it."""
    state = start()
    task = asked(state, 0)
    assert task is not None
    over = 60.0 + SLACK
    assert rendezvous.deadline(state) == over
    done = dataclasses.replace(FINE, term=task.term, number=task.number)
    state = say(state, *(report(n, done) for n in (0, 2, 3)), now=30.0)
    assert rendezvous.tick(state, over - 1).capabilities.state_of("node_check").tasks == task.number

    state = play(rendezvous.tick(state, over), {1: LOST}, now=over + 1)

    check = StatusSection.of(told(state)).check
    assert check is not None
    assert [(one.node, one.reason) for one in check.named(NodeVerdict.FAULT)] == [(1, "Connection closed by peer")]


def test_after_one_failed_its_partner_is_not_waited_for() -> None:
    """It may wait for somebody who no longer exists; what it says a moment later still counts."""
    state = start()
    task = asked(state, 0)
    assert task is not None
    done, lost = (dataclasses.replace(said, term=task.term, number=task.number) for said in (FINE, LOST))

    state = say(state, report(2, done), report(3, done), report(1, lost), now=10.0)

    assert rendezvous.deadline(state) == 10.0 + ECHO
    assert asked(rendezvous.tick(state, 10.0 + ECHO), 0) != task


def test_an_agent_that_goes_during_the_check_is_nobodys_fault() -> None:
    """Its partner is tried with somebody else."""
    state = start()
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1.1", 1.0), 10.0)

    state = later(play(state, {}, now=11.0))

    status = told(state)
    assert (status.state, [m.node for m in status.world]) == (JobState.RUNNING, [0, 2, 3])
    assert status.incidents == ()


def test_when_all_agents_go_nothing_is_judged() -> None:
    """Whoever comes next is checked from the beginning."""
    state = start()
    for node in range(4):
        state = rendezvous.disconnected(state, f"agent-{node}.1", 1.0)
    state = rendezvous.tick(state, 10.0)

    assert (state.verdict, state.capabilities.state_of("node_check").course) == (None, None)
    assert asked(say(state, *(report(n, incarnation=2) for n in range(4)), now=11.0), 0, 2) is not None


def test_level_two_runs_all_good_nodes_together() -> None:
    """Its figures are those of nccl-tests; who is at fault does not take part."""
    state = start(check=dataclasses.replace(CHECK, check_level=2))
    state = play(state, {3: BROKEN})

    check = StatusSection.of(told(state)).check
    assert check is not None
    assert check.whole is not None
    assert (check.whole.nodes, check.whole.ranks, check.whole.error) == (3, 6, "")
    assert check.whole.algbw == 100.0
    assert check.whole.busbw == pytest.approx(100.0 * 5 / 6)
    lines = [event.detail for event in told(state).events if event.kind == "node-check"]
    assert lines[-1].startswith("all 3 nodes at once, 6 ranks: algbw 100 B/s, busbw 83.3 B/s, latency ")
    assert lines[-2].startswith("bandwidth ")


def test_a_transfer_that_takes_no_time_has_no_bandwidth() -> None:
    """A probe may be faster than its clock; that is no division by zero."""
    state = start(check=dataclasses.replace(CHECK, check_level=2))
    state = play(state, {node: dataclasses.replace(FINE, transfer=0.0) for node in range(4)})

    whole = check_of(told(state)).whole
    assert whole is not None
    assert (whole.nodes, whole.seconds, whole.algbw, whole.busbw) == (4, 0.0, 0.0, 0.0)


def test_a_job_that_is_only_a_check_ends_with_what_was_found() -> None:
    """Also where a node is at fault: nobody is sent away, and the result says who it is."""
    state = play(start(check=dataclasses.replace(CHECK, check_only=True)), {0: BROKEN})

    status = told(state)
    assert status.verdict is not None
    assert (status.verdict.outcome, status.verdict.message) == (
        Outcome.SUCCEEDED,
        "node check 1: 4 nodes, 3 rounds; faulty: 0",
    )
    assert status.result["nodes"][0]["verdict"] == "fault"
    assert status.incidents == ()


def test_a_new_coordinator_trusts_what_was_checked_and_repeats_what_was_not_finished() -> None:
    """The members of the last world were checked; a check on its way is begun anew, with tasks of the new term."""
    status = told(running(play(start(), {})))
    second = rendezvous.new(FOUR, job="digits", uid="u1", attempt=1, term=2, now=50.0, previous=status, registered=CHECKED)
    again = say(second, *(report(n, round=1) for n in range(4)), now=51.0)
    assert again.state is JobState.RUNNING

    second = rendezvous.new(
        FOUR, job="digits", uid="u1", attempt=1, term=2, now=50.0, previous=told(start()), registered=CHECKED
    )
    task = asked(say(second, *(report(n) for n in range(4)), now=51.0), 0)

    assert task is not None
    assert (task.term, task.number) == (2, 1)


def test_a_thousand_nodes_fit_into_a_status() -> None:
    """Bad nodes are told before good ones, and how many are not told at all."""
    many = dataclasses.replace(FOUR, min_nodes=300, max_nodes=300)
    state = start(many, nodes=300, check=dataclasses.replace(CHECK, check_only=True))
    number = state.capabilities.state_of("node_check").tasks
    for _ in range(3):
        if state.verdict is None:
            number = state.capabilities.state_of("node_check").tasks
            told_all = dataclasses.replace(FINE, term=1, number=number)
            bad = dataclasses.replace(BROKEN, term=1, number=number)
            for n in range(300):
                state = say(state, report(n, bad if n == 250 else told_all))

    check = StatusSection.of(told(state)).check
    assert check is not None
    assert (check.count, len(check.nodes), check.nodes[0].node) == (300, 96, 250)
    assert check.left_out > 0
    assert len(codec.dumps(check)) < 48 * 1024
