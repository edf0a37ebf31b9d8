"""The rendezvous as a dialogue: reports in, answers out. Nothing here waits; time is a number."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.capabilities import Registered
from rallypoint.agent.rendezvous.core import RECONNECT_WITHIN, Settings, State
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Rung
from rallypoint.wire.messages import (
    MESSAGES_VERSION,
    AgentReport,
    AgentState,
    Assignment,
    Refusal,
    Regroup,
    Reply,
    Stop,
    WorkerReport,
)
from rallypoint.wire.node_range import Size
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus, Outcome

#: A lease so long that only the tests about leases meet one.
PATIENT = 10_000.0
TWO = Settings(min_nodes=2, max_nodes=2, node_lease=PATIENT)
ELASTIC = Settings(min_nodes=1, max_nodes=3, last_call=5.0, node_lease=PATIENT)
LEASED = dataclasses.replace(ELASTIC, node_lease=15.0)


def start(
    settings: Settings = TWO,
    term: int = 1,
    previous: JobStatus | None = None,
    now: float = 0.0,
    registered: Registered = (),
) -> State:
    return rendezvous.new(
        settings, job="digits", uid="u1", attempt=1, term=term, now=now, previous=previous, registered=registered
    )


def report(
    node: int, state: AgentState = AgentState.WAITING, round_: int = 0, incarnation: int = 1, **more: object
) -> AgentReport:
    fields: dict[str, object] = {
        "job": "digits",
        "fence": Fence(attempt=1, term=1, round=round_),
        "node": node,
        "incarnation": incarnation,
        "agent": f"agent-{node}.{incarnation}",
        "host": f"host-{node}",
        "local_world_size": 2,
        "store": f"host-{node}:{1000 + round_}",
        "state": state,
        "round": round_,
    }
    return build(AgentReport, **{**fields, **more})


def say(state: State, *reports: AgentReport, now: float = 0.0) -> State:
    for one in reports:
        assert rendezvous.refusal(state, one) is None
        state = rendezvous.receive(state, one, now)
    return state


def answers(state: State, *nodes: str) -> list[Reply | None]:
    return [rendezvous.answer(state, f"agent-{node}") for node in nodes]


def training(settings: Settings = TWO, nodes: int = 2, registered: Registered = ()) -> State:
    """Return a job whose first round runs on `nodes` nodes."""
    state = say(start(settings, registered=registered), *(report(node) for node in range(nodes)))
    state = rendezvous.tick(state, settings.last_call)
    return say(state, *(report(node, AgentState.RUNNING, 1) for node in range(nodes)), now=settings.last_call)


def killed(node: int, local_rank: int = 0) -> Culprit:
    return Culprit(node=node, host=f"host-{node}", rank=2 * node + local_rank, local_rank=local_rank, signal=9)


def test_a_round_waits_for_its_nodes_and_then_deals_out_ranks() -> None:
    """Nobody is answered before the world is complete; then ranks follow the slots and the store is the first node's."""
    state = say(start(), report(1))
    assert answers(state, "1.1") == [None]
    state = say(state, report(0))

    first, second = answers(state, "0.1", "1.1")

    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    assert (first.group_rank, first.first_rank, first.world_size, first.store) == (0, 0, 4, "host-0:1000")
    assert (second.group_rank, second.first_rank, second.world_size, second.store) == (1, 2, 4, "host-0:1000")
    assert first.digest == second.digest
    assert first.fence == Fence(attempt=1, term=1, round=1)


def test_the_last_call_lets_more_nodes_come() -> None:
    """With MIN nodes there, the first round still waits for MAX until the last call is over."""
    state = say(start(ELASTIC), report(0), now=1.0)
    assert rendezvous.deadline(state) == 6.0
    assert answers(rendezvous.tick(state, 5.9), "0.1") == [None]
    state = say(state, report(1), now=3.0)

    state = rendezvous.tick(state, 6.0)

    assert [m.node for m in state.world] == [0, 1]


def test_the_largest_world_is_closed_at_once() -> None:
    """Once MAX nodes wait there is nobody left to wait for."""
    state = say(start(ELASTIC), report(0), report(1), report(2))
    assert state.state is JobState.RUNNING
    assert len(state.world) == 3


def test_too_few_nodes_end_the_job_after_the_join_timeout() -> None:
    """The verdict says how many of how many joined, and which setting decided."""
    state = rendezvous.tick(say(start(), report(0), now=590.0), 600.0)
    assert state.verdict is not None
    assert state.verdict.reason == "RendezvousTimeout"
    assert (
        state.verdict.message
        == "1 of 2 to 2 nodes joined within 600 s (rendezvous.join_timeout); check the logs of the missing nodes"
    )
    assert isinstance(answers(state, "0.1")[0], Stop)


def test_the_result_of_rank_0_is_told_with_the_success_and_kept_by_the_next_coordinator() -> None:
    """It comes with the report of whoever hosts rank 0, and only when everybody has ended well."""
    state = say(training(), report(0, AgentState.DONE, 1, result={"accuracy": 0.97}), now=50.0)
    assert rendezvous.status(state, 50.0).result is None

    state = say(state, report(1, AgentState.DONE, 1), now=51.0)

    told = rendezvous.status(state, 51.0)
    assert (told.state, told.result) == (JobState.SUCCEEDED, {"accuracy": 0.97})
    assert codec.loads(JobStatus, codec.dumps(told)) == told
    assert rendezvous.status(start(term=2, previous=told), 0.0).result == {"accuracy": 0.97}


def test_a_world_grows_and_shrinks_with_the_size_that_is_wanted() -> None:
    """It grows when the nodes are there, shrinks when the supervisor has taken some away, and neither costs anything."""
    state = training(TWO)
    state = say(state, report(2), now=11.0)
    assert answers(state, "0.1", "2.1") == [None, None], "there is no room for a third"

    state = rendezvous.resized(state, Size(min_nodes=1, max_nodes=3), TWO, 12.0)

    assert [type(a) for a in answers(state, "0.1", "1.1")] == [Regroup, Regroup]
    state = say(state, *(report(node, AgentState.WAITING, 1) for node in (0, 1)), now=13.0)
    assert [m.node for m in state.world] == [0, 1, 2]
    state = say(state, *(report(node, AgentState.RUNNING, 2) for node in range(3)), now=14.0)
    state = rendezvous.resized(state, Size(min_nodes=1, max_nodes=1), TWO, 15.0)
    assert state.state is JobState.RUNNING, "it trains on until nodes are taken away"
    state = say(state, *(report(node, AgentState.LEAVING, 2) for node in (1, 2)), now=16.0)
    state = say(state, report(0, AgentState.WAITING, 2), now=17.0)
    assert [m.node for m in state.world] == [0]
    assert {incident.cause for incident in state.incidents} == {Cause.SCALE}
    assert rendezvous.resized(state, None, TWO, 18.0).settings == TWO
    assert [e.detail for e in state.events if e.kind == "resized"] == [
        "1 to 3 nodes are required now",
        "1 to 1 nodes are required now",
    ]


def test_a_dead_worker_restarts_everyone_and_is_one_incident() -> None:
    """The node with the dead worker and the healthy one both regroup, and the next round has a fresh store."""
    state = training()
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=50.0)
    assert [type(a) for a in answers(state, "0.1", "1.1")] == [Regroup, Regroup]
    state = say(state, report(1, AgentState.WAITING, 1, failures=(killed(1),)), now=50.1)
    assert answers(state, "1.1") == [None], "node 0 is still stopping its workers"
    state = say(state, report(0, AgentState.WAITING, 1), now=50.2)

    [again] = answers(state, "0.1")

    assert isinstance(again, Assignment)
    assert (again.fence.round, again.restart_count, again.store) == (2, 1, "host-0:1001")
    [incident] = state.incidents
    assert (incident.cause, incident.rung) == (Cause.PROCESS, Rung.RESTART_WORKERS)
    assert incident.reason == "rank 2 (local rank 0) on node 1 (host-1) was killed by SIGKILL"


def test_restarts_end_with_the_budget() -> None:
    """`max_restarts` faults are answered; the one after them is the verdict, with the culprit."""
    settings = dataclasses.replace(TWO, max_restarts=1)
    state = training(settings)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=50.0)
    state = say(state, report(1, AgentState.WAITING, 1), report(0, AgentState.WAITING, 1), now=51.0)
    state = say(state, *(report(node, AgentState.RUNNING, 2) for node in (0, 1)), now=52.0)

    state = say(state, report(0, AgentState.FAILED, 2, failures=(killed(0, 1),)), now=60.0)

    assert state.verdict is not None
    assert state.verdict.reason == "WorkersFailed"
    assert state.verdict.message.endswith("was killed by SIGKILL; no restarts left (limit: 1)")
    assert state.verdict.culprit == killed(0, 1)
    assert [i.rung for i in state.incidents] == [Rung.RESTART_WORKERS, Rung.EXIT]


def echo(node: int) -> Culprit:
    return dataclasses.replace(killed(node), signal=None, exit_code=1, error="RuntimeError: Connection closed by peer")


def test_nothing_is_due_while_somebody_is_outstanding() -> None:
    """A time-out that has passed while agents still stop their workers is no deadline: nothing follows from it."""
    state = say(training(), report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=50.0)
    due = rendezvous.deadline(rendezvous.tick(state, 700.0))
    assert due is not None
    assert due > 700.0


def test_failures_of_one_round_are_charged_once() -> None:
    """A second node that reports the echo of the first failure spends nothing."""
    state = training()
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=50.0)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(echo(0),)), now=50.1)
    assert len(state.incidents) == 1


def test_a_lost_node_shrinks_the_world_at_once() -> None:
    """When an agent's connection breaks and it stays away, the others regroup without a last call."""
    state = rendezvous.disconnected(training(ELASTIC, nodes=3), "agent-2.1", 100.0)
    state = say(state, *(report(node, AgentState.RUNNING, 1) for node in (0, 1)), now=100.01)
    assert state.state is JobState.RUNNING
    assert rendezvous.deadline(state) == 100.0 + RECONNECT_WITHIN
    state = rendezvous.tick(state, 101.0)
    assert [type(a) for a in answers(state, "0.1", "1.1")] == [Regroup, Regroup]

    state = say(state, report(0, round_=1), report(1, round_=1), now=101.5)

    assert [m.node for m in state.world] == [0, 1]
    assert state.fence.round == 2
    assert state.incidents[0].reason == "node 2 on host-2 closed its connection and did not reconnect"


def test_a_short_disconnection_costs_nothing() -> None:
    """An agent that asks again within the grace was never gone."""
    state = rendezvous.disconnected(training(), "agent-1.1", 100.0)
    state = say(state, report(0, AgentState.RUNNING, 1), report(1, AgentState.RUNNING, 1), now=100.01)
    state = rendezvous.tick(state, 102.0)
    assert state.state is JobState.RUNNING
    assert not state.incidents


def test_a_silent_node_is_lost_after_its_lease() -> None:
    """Without a broken connection only the lease tells."""
    state = training(LEASED, nodes=2)
    state = say(state, report(0, AgentState.RUNNING, 1), now=15.0)
    assert not rendezvous.tick(state, 19.9).incidents
    state = rendezvous.tick(state, 20.0)
    assert state.incidents[0].reason == "node 1 on host-1 sent no report within its lease"


def test_the_world_grows_when_a_node_returns() -> None:
    """A replacement that waits makes the others regroup, for free, and the next round includes it."""
    state = training(ELASTIC, nodes=2)
    state = say(state, report(2), now=40.0)
    assert [type(a) for a in answers(state, "0.1", "1.1", "2.1")] == [Regroup, Regroup, type(None)]
    state = say(state, report(0, round_=1), report(1, round_=1), now=41.0)
    assert [m.node for m in state.world] == [0, 1, 2]
    assert [i.cause for i in state.incidents] == [Cause.SCALE]


def test_node_unit_keeps_the_world_a_multiple() -> None:
    """A node that would break the multiple waits until a partner comes."""
    settings = Settings(min_nodes=2, max_nodes=4, node_unit=2, last_call=5.0, node_lease=PATIENT)
    state = rendezvous.tick(say(start(settings), *(report(node) for node in range(3))), 5.0)
    assert len(state.world) == 2
    state = say(state, report(0, AgentState.RUNNING, 1), report(1, AgentState.RUNNING, 1), now=6.0)
    assert state.state is JobState.RUNNING, "one waiting node alone does not make a larger world"
    state = say(state, report(3), now=7.0)
    assert isinstance(answers(state, "0.1")[0], Regroup)


def test_a_new_coordinator_takes_over_and_restarts_nobody() -> None:
    """It starts from the published status, and members that speak of the same round simply go on."""
    before = training()
    published = codec.loads(JobStatus, codec.dumps(rendezvous.status(before, 60.0)))
    state = start(term=2, previous=published, now=61.0)
    state = say(state, report(0, AgentState.RUNNING, 1), report(1, AgentState.RUNNING, 1), now=61.2)
    assert answers(state, "0.1", "1.1") == [None, None]
    assert state.state is JobState.RUNNING
    assert state.fence == Fence(attempt=1, term=2, round=1)
    assert not state.incidents


def test_a_new_coordinator_repeats_an_assignment_that_was_lost() -> None:
    """An agent that never got its place in the published round is told it again, store included."""
    before = say(start(), report(0), report(1))
    state = start(term=2, previous=rendezvous.status(before, 1.0), now=2.0)
    [again] = answers(say(state, report(0), now=2.1), "0.1")
    assert isinstance(again, Assignment)
    assert again.store == "host-0:1000"


def test_a_new_coordinator_misses_a_member_that_stays_silent() -> None:
    """Whoever does not come back within a lease is lost, and no round is closed before that."""
    published = rendezvous.status(training(LEASED, nodes=2), 60.0)
    state = start(LEASED, term=2, previous=published, now=61.0)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(killed(0),)), now=61.1)
    state = say(state, report(0, round_=1), now=61.2)
    assert answers(state, "0.1") == [None], "node 1 may still train"
    state = say(state, report(0, round_=1), now=70.0)
    state = rendezvous.tick(state, 76.0)
    assert isinstance(answers(state, "0.1")[0], Assignment)


def test_everyone_done_is_success_and_all_are_told() -> None:
    """The verdict comes with the last node, and the coordinator may go once each agent was told."""
    state = say(training(), report(0, AgentState.DONE, 1), now=70.0)
    assert state.verdict is None
    state = say(state, report(1, AgentState.DONE, 1), now=71.0)
    assert state.verdict is not None
    assert state.verdict.outcome is Outcome.SUCCEEDED
    assert not rendezvous.dismissed(state)
    assert rendezvous.dismissed(rendezvous.told(rendezvous.told(state, "agent-0.1"), "agent-1.1"))


def test_a_failure_after_some_nodes_are_done_restarts_those_too() -> None:
    """Done is only done when all are: the round as a whole is trained again."""
    state = say(training(), report(0, AgentState.DONE, 1), now=70.0)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=71.0)
    assert isinstance(answers(state, "0.1")[0], Regroup)


def test_a_leaving_node_costs_nothing() -> None:
    """An agent that was asked to end is a change of scale, not a fault, and its closed connection is no loss."""
    state = say(training(ELASTIC, nodes=2), report(1, AgentState.LEAVING, 1, reason="SIGTERM"), now=50.0)
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1.1", 50.1), 52.0)
    state = say(state, report(0, round_=1), now=52.0)
    assert [i.cause for i in state.incidents] == [Cause.SCALE]
    assert [m.node for m in state.world] == [0]


def test_a_healed_incident_knows_the_steps_it_cost() -> None:
    """The first step of the new round heals the incident and tells from where training went on."""
    worker = WorkerReport(local_rank=0, pid=7, step=120)
    state = say(training(), report(0, AgentState.RUNNING, 1, workers=(worker,)), now=50.0)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),)), now=51.0)
    state = say(state, report(0, round_=1), report(1, round_=1), now=51.5)
    assert state.incidents[0].healed_at is None
    resumed = dataclasses.replace(worker, step=101, resumed_from=100)
    state = say(state, report(0, AgentState.RUNNING, 2, workers=(resumed,)), now=54.0)
    [incident] = state.incidents
    assert (incident.healed_at, incident.last_step, incident.resumed_step, incident.steps_lost) == (54.0, 120, 100, 20)


def test_a_report_that_was_overtaken_says_nothing_new() -> None:
    """Of two reports of one agent that crossed on the way the one with the higher number is true."""
    state = say(training(), report(1, AgentState.FAILED, 1, failures=(killed(1),), sequence=5), now=50.0)
    state = say(state, report(1, AgentState.RUNNING, 1, sequence=4), now=50.1)
    assert state.peers["agent-1.1"].report.state is AgentState.FAILED
    assert state.peers["agent-1.1"].heard_at == 50.1


def test_steps_lost_count_from_the_furthest_step_known() -> None:
    """The node that broke tells a newer step than the first node's last report; that one is trained again."""
    ahead = WorkerReport(local_rank=0, pid=8, step=127)
    state = say(training(), report(0, AgentState.RUNNING, 1, workers=(WorkerReport(local_rank=0, pid=7, step=120),)), now=50.0)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),), workers=(ahead,)), now=51.0)
    assert state.incidents[0].last_step == 127
    assert state.progress.step == 120


def test_an_agent_without_a_slot_gets_the_lowest_free_one() -> None:
    """Agents started by hand may leave the numbering to the coordinator."""
    state = say(start(), report(-1, agent="a", incarnation=0), report(-1, agent="b", incarnation=0))
    assert [(p.node, p.incarnation) for p in state.peers.values()] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("change", "stale", "reason"),
    [
        pytest.param(
            {"version": 99}, True, f"protocol version 99 is not supported; expected {MESSAGES_VERSION}", id="another protocol"
        ),
        pytest.param(
            {"job": "other"}, True, "the agent belongs to job 'other', but this coordinator to job 'digits'", id="another job"
        ),
        pytest.param(
            {"fence": Fence(attempt=2)},
            False,
            "the agent belongs to attempt 2, but this coordinator to attempt 1",
            id="a later attempt",
        ),
        pytest.param(
            {"fence": Fence(attempt=1, term=2)},
            False,
            "coordinator term 2 has replaced this coordinator (term 1)",
            id="a later coordinator",
        ),
        pytest.param(
            {"incarnation": 0, "agent": "old"},
            True,
            "a newer process of node 1 (incarnation 1) has replaced this agent (incarnation 0)",
            id="a replaced node",
        ),
        pytest.param(
            {"agent": "twin"}, False, "node 1 is already used by agent agent-1.1 on host-1", id="a slot that is taken"
        ),
    ],
)
def test_reports_that_are_refused(change: dict[str, object], stale: bool, reason: str) -> None:
    """Whoever belongs to the past is told to end; whoever is early or mistaken is told why."""
    refused = rendezvous.refusal(training(), report(1, **change))  # type: ignore[arg-type]
    assert isinstance(refused, Refusal)
    assert (refused.stale, refused.reason) == (stale, reason)


def test_every_slot_has_one_agent() -> None:
    """The first one, too; a spare has no slot, and any number may come."""
    refused = rendezvous.refusal(training(), report(0, agent="twin"))
    assert refused is not None
    assert refused.reason == "node 0 is already used by agent agent-0.1 on host-0"
    assert rendezvous.refusal(training(), report(-1, agent="spare")) is None


def test_an_attempt_of_the_past_is_stale() -> None:
    """An agent of an attempt that was reset must end."""
    state = rendezvous.new(TWO, job="digits", uid="u1", attempt=2, term=2, now=0.0)
    refused = rendezvous.refusal(state, report(0))
    assert refused is not None
    assert refused.stale


def test_the_status_of_another_attempt_is_not_taken_over() -> None:
    """A reset job begins from nothing, whatever the last attempt published."""
    published = rendezvous.status(training(), 60.0)
    state = rendezvous.new(TWO, job="digits", uid="u1", attempt=2, term=2, now=61.0, previous=published)
    assert state.world == ()
    assert state.fence == Fence(attempt=2, term=2, round=0)


def test_who_is_told_to_regroup_learns_whether_somebody_is_gone() -> None:
    """After a fault the others wait for the dead in a collective; when a node joins they do not."""
    broken = say(training(), report(0, AgentState.FAILED, 1, failures=(killed(0),)), now=50.0)
    roomy = dataclasses.replace(TWO, max_nodes=3)
    grown = say(training(roomy), report(2), now=50.0)

    told = [answers(state, "1.1")[0] for state in (broken, grown)]

    assert [(type(reply), getattr(reply, "dead", None)) for reply in told] == [(Regroup, True), (Regroup, False)]
