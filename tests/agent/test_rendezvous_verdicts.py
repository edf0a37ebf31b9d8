"""What the coordinator does about ends that have a verdict: restart, send the node away, end the job. Nothing here waits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import ECHO_GRACE, RECONNECT_WITHIN, Settings, State
from rallypoint.wire import codec
from rallypoint.wire.failover import Failover
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, Rung
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Regroup, Stop, WorkerReport
from rallypoint.wire.plan import EndRule, Profile, Refill
from rallypoint.wire.status import JobState, JobStatus, Outcome
from tests.agent.test_rendezvous import ELASTIC, PATIENT, TWO, answers, report, say, start, training

AWAY = EndRule(exit_codes=(77,), answer=Answer.RETRY_ELSEWHERE)
FATAL = EndRule(log_pattern="loss is nan", answer=Answer.FAIL_NOW)


def broken(node: int, code: int = 1, error: str = "", local_rank: int = 0, at: float = 1.0) -> Culprit:
    rank = 2 * node + local_rank
    return Culprit(node=node, host=f"host-{node}", rank=rank, local_rank=local_rank, exit_code=code, error=error, at=at)


def failed(node: int, *failures: Culprit, state: AgentState = AgentState.FAILED, **more: Any) -> AgentReport:
    return report(node, state, 1, failures=failures, **more)


def with_settings(base: Settings, **more: object) -> Settings:
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def only(state: State) -> Incident:
    [incident] = state.incidents
    return incident


def test_an_ordinary_end_is_restarted_with_its_verdict_told() -> None:
    """The incident says what it was, what was done, and by which rule."""
    state = say(training(), failed(0, broken(0, error="ValueError: no")), now=50.0)
    incident = only(state)
    assert (incident.kind, incident.answer, incident.rung) == (
        FaultKind.APPLICATION_ERROR,
        Answer.RETRY_HERE,
        Rung.RESTART_WORKERS,
    )
    assert incident.rule == "default rule for application-error"


def hung(node: int) -> Culprit:
    return broken(
        node, error="RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation"
    )


def test_a_collective_that_timed_out_is_a_hang_and_has_a_budget_of_its_own() -> None:
    """Everybody says the same, so it is charged after the grace for echoes: to the hangs, and not to the process faults."""
    state = training(with_settings(TWO, max_restarts=0, max_hangs=1))
    state = say(state, failed(0, hung(0)), failed(1, hung(1)), now=50.0)
    state = rendezvous.tick(state, 50.0 + ECHO_GRACE)
    assert (only(state).cause, only(state).kind, state.verdict) == (Cause.HANG, FaultKind.HANG, None)


def test_a_spent_budget_of_hangs_ends_the_attempt() -> None:
    """However many restarts are left for process faults."""
    state = training(with_settings(TWO, max_restarts=9, max_hangs=0))
    state = say(state, failed(0, hung(0)), failed(1, hung(1)), now=50.0)
    state = rendezvous.tick(state, 50.0 + ECHO_GRACE)
    assert state.verdict is not None
    assert "restarts after a hang are disabled" in state.verdict.message


@pytest.mark.parametrize(
    ("settings", "failure", "reason", "rule"),
    [
        pytest.param({"terminal_exit_codes": (3,)}, broken(1, 3), "TerminalExitCode", "exit code 3 is terminal", id="terminal"),
        pytest.param(
            {"retryable_exit_codes": (137,)},
            broken(1, 3),
            "TerminalExitCode",
            "exit code 3 is not retryable",
            id="not retryable",
        ),
        pytest.param(
            {"end_rules": (FATAL,)},
            broken(1, 1, "RuntimeError: loss is nan"),
            "FailNow",
            "rule 1 of fault_tolerance.rules (log pattern 'loss is nan')",
            id="rule",
        ),
    ],
)
def test_an_end_that_must_not_be_retried_ends_the_job_at_once(
    settings: dict[str, object], failure: Culprit, reason: str, rule: str
) -> None:
    """No worker is restarted although the budget is untouched; verdict and incident name the rule."""
    state = say(training(with_settings(TWO, max_restarts=9, **settings)), failed(1, failure), now=50.0)
    assert state.verdict is not None
    assert (state.verdict.outcome, state.verdict.reason, state.verdict.culprit) == (Outcome.FAILED, reason, failure)
    assert state.verdict.message.endswith(rule)
    assert [type(answer) for answer in answers(state, "0.1", "1.1")] == [Stop, Stop]
    incident = only(state)
    assert (incident.answer, incident.rung, incident.rule) == (Answer.FAIL_NOW, Rung.EXIT, rule)


def test_codes_of_those_who_died_of_it_are_not_judged_by_the_retryable_list() -> None:
    """The culprit was killed with a retryable code; what its peers ended with says nothing."""
    settings = with_settings(TWO, retryable_exit_codes=(137,))
    killed = dataclasses.replace(broken(0), exit_code=None, signal=9)
    state = say(training(settings), failed(0, killed, broken(0, 1, "RuntimeError: peer", local_rank=1)), now=50.0)
    assert state.verdict is None
    assert only(state).rule == "exit code 137 is retryable"


def test_a_terminal_code_counts_whoever_the_culprit_is() -> None:
    """Of several that broke by themselves, one with a terminal code is enough: it must not be started again."""
    settings = with_settings(TWO, terminal_exit_codes=(3,))
    killed = dataclasses.replace(broken(0), exit_code=None, signal=9)
    state = say(training(settings), failed(0, killed, broken(0, 3, local_rank=1)), now=50.0)
    assert state.verdict is not None
    assert state.verdict.culprit == broken(0, 3, local_rank=1)


def test_the_code_of_an_echo_is_not_judged_while_somebody_else_may_be_to_blame() -> None:
    """A rank that lost its peer ends with 1, a terminal code; the peer's node is lost, and the job goes on."""
    state = training(with_settings(ELASTIC, terminal_exit_codes=(1,)), nodes=3)
    state = rendezvous.disconnected(state, "agent-2.1", 50.0)
    state = say(state, failed(0, broken(0, 1, "RuntimeError: Connection closed by peer")), now=50.01)
    state = rendezvous.tick(state, 50.0 + RECONNECT_WITHIN)
    assert state.verdict is None
    assert [i.cause for i in state.incidents] == [Cause.NODE]


def test_a_terminal_code_told_late_still_ends_the_job() -> None:
    """Two workers break on two nodes; the second tells when everybody regroups already, and is not started again."""
    state = say(training(with_settings(TWO, terminal_exit_codes=(3,))), failed(0, broken(0, 1, "ValueError: no")), now=50.0)
    assert state.verdict is None
    state = say(state, failed(1, broken(1, 3)), now=50.1)
    assert state.verdict is not None
    assert state.verdict.reason == "TerminalExitCode"


def test_what_is_told_late_is_not_judged_when_the_round_lost_a_node() -> None:
    """Whatever fails after a node was lost failed because of that, also with words that nobody knows."""
    state = training(with_settings(ELASTIC, terminal_exit_codes=(1,)), nodes=3)
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-2.1", 50.0), 50.0 + RECONNECT_WITHIN)
    state = say(state, failed(0, broken(0, 1, "RuntimeError: something odd")), now=51.5)
    assert state.verdict is None


# --- Another node ----------------------------------------------------------------------------------------------------------


def test_a_node_that_must_be_replaced_leaves_and_the_others_go_on() -> None:
    """Its agent is told to stop, alone; the world goes on without it and grows when its replacement comes."""
    state = say(training(with_settings(ELASTIC, end_rules=(AWAY,))), failed(1, broken(1, 77)), now=50.0)
    regroup, leave = answers(state, "0.1", "1.1")
    assert isinstance(regroup, Regroup)
    assert isinstance(leave, Stop)
    assert (leave.verdict.reason, leave.verdict.outcome) == ("RetryElsewhere", Outcome.FAILED)
    assert "rank 2 (local rank 0) on node 1 (host-1) exited with code 77" in leave.verdict.message
    incident = only(state)
    assert (incident.cause, incident.kind, incident.answer) == (Cause.NODE, FaultKind.EXIT_CODE, Answer.RETRY_ELSEWHERE)
    assert (incident.id.node, incident.id.sequence, incident.id.round) == (1, 1, 0), "the id of the node's own end"

    state = say(state, report(0, AgentState.WAITING, 1), now=50.5)
    assert state.state is JobState.FORMING, "its workers may still be there"
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1.1", 51.0), 51.0 + RECONNECT_WITHIN)
    assert [m.node for m in state.world] == [0]
    assert only(state).kind is FaultKind.EXIT_CODE, "its end is the same fault"

    state = say(state, report(0, AgentState.RUNNING, 2), report(1, incarnation=2), now=60.0)
    state = say(state, report(0, AgentState.WAITING, 2), now=61.0)
    assert [(m.node, m.incarnation) for m in state.world] == [(0, 1), (1, 2)]
    assert sum(i.cause is Cause.PROCESS for i in state.incidents) == 0, "no restart was charged"


def test_a_node_that_was_sent_away_gets_no_place_again() -> None:
    """It asks for a place before it has heard that it must leave, or although it has."""
    state = say(training(with_settings(TWO, end_rules=(AWAY,))), failed(1, broken(1, 77)), now=50.0)
    state = say(state, report(0, AgentState.WAITING, 1), failed(1, broken(1, 77), state=AgentState.WAITING), now=51.0)
    assert state.state is JobState.FORMING
    assert isinstance(answers(state, "1.1")[0], Stop)


def test_one_who_takes_over_still_sends_it_away() -> None:
    """The successor reads in the status who must leave."""
    state = say(training(with_settings(ELASTIC, end_rules=(AWAY,))), failed(1, broken(1, 77)), now=50.0)
    told = codec.loads(JobStatus, codec.dumps(rendezvous.status(state, 50.0)))
    after = start(with_settings(ELASTIC, end_rules=(AWAY,)), term=2, previous=told, now=9.0)
    after = say(after, failed(1, broken(1, 77)), now=9.1)
    assert isinstance(answers(after, "1.1")[0], Stop)
    assert after.incidents == state.incidents


def test_hardware_goes_elsewhere_by_the_table() -> None:
    """Exit code 201 says that the machine is broken."""
    state = say(training(), failed(1, broken(1, 201)), now=50.0)
    assert only(state).kind is FaultKind.HARDWARE
    assert isinstance(answers(state, "1.1")[0], Stop)


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [
        pytest.param({"node_replacements": 0}, False, id="no node is replaced"),
        pytest.param({"node_replacements": 0, "profile": Profile.APPWRAPPER}, True, id="its loss resets the job"),
        pytest.param({}, True, id="it is replaced"),
    ],
)
def test_a_node_only_leaves_where_that_helps(settings: dict[str, object], leaves: bool) -> None:
    """Where nobody would take its place its workers are restarted, and the incident says why."""
    state = say(training(with_settings(TWO, **settings)), failed(1, broken(1, 201)), now=50.0)
    assert isinstance(answers(state, "1.1")[0], Stop) is leaves
    if not leaves:
        assert (only(state).answer, only(state).cause) == (Answer.RETRY_HERE, Cause.PROCESS)
        assert only(state).rule == (
            "default rule for hardware; restarting the workers because node replacement is disabled (node_replacements is 0)"
        )


def test_a_lost_node_is_left_to_the_supervisors_verdict() -> None:
    """That it is gone is all that can be seen from inside."""
    state = rendezvous.tick(rendezvous.disconnected(training(), "agent-1.1", 50.0), 50.0 + RECONNECT_WITHIN)
    assert (only(state).kind, only(state).answer) == (FaultKind.NODE_LOST, None)


# --- The extension's answers -----------------------------------------------------------------------------------------------


def test_an_extension_that_answers_normal_changes_nothing() -> None:
    """The rules and the table decide as if it were not there, and its trouble is told with the incident."""
    note = "extension my.mod::Cls raised ValueError: no; using NORMAL"
    state = say(training(), failed(1, broken(1), failover=Failover.NORMAL, failover_note=note), now=50.0)
    assert only(state).answer is Answer.RETRY_HERE
    assert only(state).rule == f"default rule for exit-code; {note}"


def test_an_extension_is_asked_before_the_rules() -> None:
    """Its NODE beats a terminal exit code."""
    settings = with_settings(TWO, terminal_exit_codes=(3,), failover_extension="my.mod::Cls")
    state = say(training(settings), failed(1, broken(1, 3), failover=Failover.NODE), now=50.0)
    assert state.verdict is None
    assert only(state).rule == "extension my.mod::Cls returned NODE"
    assert isinstance(answers(state, "1.1")[0], Stop)


@pytest.mark.difference(14)
@pytest.mark.parametrize(
    ("answer", "reason", "rung"),
    [
        pytest.param(Failover.ABORT, "FailNow", Rung.EXIT, id="abort"),
        pytest.param(Failover.GLOBAL, "GlobalFailover", Rung.RESET, id="global"),
    ],
)
def test_an_extension_can_end_the_job_or_the_attempt(answer: Failover, reason: str, rung: Rung) -> None:
    """ABORT is final; GLOBAL ends the attempt, and the supervisor resets the job once for it."""
    settings = with_settings(TWO, failover_extension="my.mod::Cls")
    state = say(training(settings), failed(1, broken(1, 3), failover=answer), now=50.0)
    assert state.verdict is not None
    assert state.verdict.reason == reason
    assert f"extension my.mod::Cls returned {answer.name}" in state.verdict.message
    assert only(state).rung is rung


def test_an_extension_is_heard_although_another_node_told_first() -> None:
    """It takes a moment to answer; meanwhile an echo has broken the round."""
    state = training(with_settings(TWO, failover_extension="my.mod::Cls"))
    state = say(state, failed(0, broken(0, 1, "RuntimeError: Connection closed by peer")), now=50.0)
    state = say(state, failed(1, broken(1, 3), failover=Failover.ABORT), now=50.1)
    assert state.verdict is not None
    state = training(with_settings(TWO, failover_extension="my.mod::Cls"))
    state = say(state, failed(0, broken(0, 1, "ValueError: no")), now=50.0)
    state = say(state, failed(1, broken(1, 1, "Connection reset"), failover=Failover.ABORT), now=52.0)
    assert state.verdict is not None


# --- Budgets ---------------------------------------------------------------------------------------------------------------


def rejoined(state: State, round_: int, now: float) -> State:
    state = say(state, *(report(node, AgentState.WAITING, round_) for node in range(2)), now=now)
    return say(state, *(report(node, AgentState.RUNNING, round_ + 1) for node in range(2)), now=now)


def stepping(state: State, round_: int, *told: tuple[float, int]) -> State:
    for now, step in told:
        worker = WorkerReport(local_rank=0, pid=7, step=step)
        state = say(state, report(0, AgentState.RUNNING, round_, workers=(worker,)), now=now)
        state = say(state, report(1, AgentState.RUNNING, round_), now=now)
    return state


def faulty(state: State, round_: int, now: float) -> State:
    return say(state, report(1, AgentState.FAILED, round_, failures=(broken(1),)), now=now)


def test_healthy_progress_gives_the_restarts_back() -> None:
    """One restart is allowed; a minute of newer steps later there is one again, and the count of restarts is not forgotten."""
    settings = Settings(min_nodes=2, max_nodes=2, node_lease=PATIENT, max_restarts=1, process_refill=Refill(healthy_for=60.0))
    state = rejoined(faulty(training(settings), 1, 10.0), 1, 11.0)
    state = stepping(state, 2, (20.0, 1), (90.0, 2))
    state = rejoined(faulty(state, 2, 100.0), 2, 101.0)
    assert state.verdict is None
    assigned = rendezvous.answer(say(state, report(0, AgentState.WAITING, 2), now=101.0), "agent-0.1")
    assert isinstance(assigned, Assignment)
    assert assigned.restart_count == 2
    state = faulty(state, 3, 110.0)
    assert state.verdict is not None
    assert state.verdict.reason == "WorkersFailed"


def test_one_who_takes_over_does_not_refill() -> None:
    """The fault that its predecessor charged is charged still, and one that was paid back is not charged again."""
    settings = Settings(min_nodes=2, max_nodes=2, node_lease=PATIENT, max_restarts=1, process_refill=Refill(window=100.0))
    state = rejoined(faulty(training(settings), 1, 10.0), 1, 11.0)
    told = rendezvous.status(state, 1_000.0)
    after = start(settings, term=2, previous=told, now=5.0)
    after = say(after, report(0, AgentState.RUNNING, 2), report(1, AgentState.RUNNING, 2), now=50.0)
    assert faulty(after, 2, 60.0).verdict is not None, "its own clock says nothing of when the first was: it was just now"

    told = rendezvous.status(rendezvous.tick(state, 111.0), 111.0)
    assert told.incidents[0].refilled
    after = start(settings, term=2, previous=told, now=5.0)
    after = say(after, report(0, AgentState.RUNNING, 2), report(1, AgentState.RUNNING, 2), now=6.0)
    assert faulty(after, 2, 7.0).verdict is None


def test_a_coordinator_of_many_faults_tells_them_in_bounds() -> None:
    """The oldest become counts; the budget, the restart count and a successor count as before."""
    settings = with_settings(TWO, max_restarts=250)
    state = training(settings)
    for number in range(1, 251):
        failure = dataclasses.replace(broken(1), log_tail=("x" * 100,) * 20)
        state = say(state, report(1, AgentState.FAILED, number, failures=(failure,)), now=100.0 * number)
        state = rejoined(state, number, 100.0 * number)
    status = rendezvous.status(state, 0.0)
    assert len(codec.dumps(status)) < 128 * 1024
    assert len(status.incidents) + sum(count.count for count in status.folded) == 250
    after = start(settings, term=2, previous=status, now=5.0)
    after = say(after, *(report(node, AgentState.RUNNING, 251) for node in range(2)), now=6.0)
    assert after.verdict is None
    assert faulty(after, 251, 7.0).verdict is not None
