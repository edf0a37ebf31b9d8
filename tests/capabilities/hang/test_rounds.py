"""What the coordinator does about a world that hangs: doubt, inquiry, verdict, and what `hang_detection` asks for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.capabilities.hang.coordinator import HangDetection
from rallypoint.capabilities.hang.rounds import EVIDENCE_WITHIN
from rallypoint.capabilities.hang.state import HangSettings
from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.wire import codec
from rallypoint.wire.hang import Evidence, HangState, RankSeen
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, Rung
from rallypoint.wire.messages import AgentReport, AgentState, Continue, Regroup, WorkerReport
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus
from tests.agent.test_rendezvous import TWO, report, say
from tests.capabilities.hang.jobs import own, watched

REDUCE, SLEEP = ("torch/distributed/x.py:1 all_reduce", "t.py:2 step"), ("t.py:9 nap",)
STEPS = 7
CAPABILITY = (HangDetection(HangSettings(hang_downtime=60.0, hang_detection=2, warmup_grace=100.0)),)


def settings(action: int = 2) -> HangSettings:
    return HangSettings(hang_downtime=60.0, hang_detection=action, warmup_grace=100.0)


def says(node: int, liveness: int = STEPS, round_: int = 1, **more: Any) -> AgentReport:
    workers = tuple(WorkerReport(local_rank=n, pid=10 + n, liveness=liveness) for n in (0, 1))
    return report(node, more.pop("state", AgentState.RUNNING), round_, workers=workers, **more)


def quiet(state: State, since: float, until: float) -> State:
    """Let both agents report the same every 5 seconds."""
    now = since
    while now < until:
        now = min(until, now + 5.0)
        state = say(state, says(0), says(1), now=now)
    return state


def hung(action: int = 2, until: float = 61.0, **more: Any) -> State:
    """Return a job whose ranks took their last step at 1 s, and whose agents have told nothing new until `until`."""
    return quiet(say(watched(settings(action), dataclasses.replace(TWO, **more)), says(0), says(1), now=1.0), 1.0, until)


def found(node: int, *, number: int = 1, culprit: bool = False) -> Evidence:
    stacks = (REDUCE, SLEEP if culprit else REDUCE)
    ranks = tuple(RankSeen(local_rank=n, pid=10 + n, liveness=STEPS, state="S", frames=f) for n, f in enumerate(stacks))
    return Evidence(round=1, number=number, path=f"/logs/{node}", ranks=ranks)


def judged(action: int = 2, **more: Any) -> State:
    return say(hung(action, **more), says(0, evidence=found(0)), says(1, evidence=found(1, culprit=True)), now=62.0)


def taken(settings: Settings, *, now: float, previous: JobStatus) -> State:
    """Return the state of another coordinator."""
    more = {"previous": previous, "registered": CAPABILITY}
    return rendezvous.new(settings, job="digits", uid="u1", attempt=1, term=2, now=now, **more)  # type: ignore[arg-type]


def the_incident(state: State) -> Incident:
    [incident] = state.incidents
    return incident


def test_a_doubt_is_told_and_nothing_is_done() -> None:
    """At half of `hang_downtime`."""
    state = hung(until=31.0)

    assert own(state).hang is not None
    doubt = own(state).hang
    assert (doubt.state, doubt.round, doubt.since, doubt.quiet_since) == (HangState.DOUBT, 1, 31.0, 1.0)
    assert (state.state, state.incidents, rendezvous.answer(state, "agent-0.1")) == (JobState.RUNNING, (), None)
    assert StatusSection.of(rendezvous.status(state, 31.0)).hang == own(state).hang


def test_life_ends_a_doubt() -> None:
    """And the story says after how long."""
    state = say(hung(until=41.0), says(1, liveness=STEPS + 1), now=42.0)

    assert (own(state).hang, state.events[-1].kind, state.events[-1].detail) == (
        None,
        "hang-over",
        "training continues after 41 s without progress",
    )


def test_before_a_verdict_the_agents_are_asked() -> None:
    """Each until it has answered, and the verdict waits for them."""
    state = hung()
    assert rendezvous.answer(state, "agent-0.1") == build(Continue, fence=state.fence, evidence=1)

    state = say(state, says(0, evidence=found(0)), now=62.0)

    assert rendezvous.answer(state, "agent-0.1") is None
    assert rendezvous.answer(state, "agent-1.1") == build(Continue, fence=state.fence, evidence=1)
    assert own(state).hang is not None
    assert (own(state).hang.state, state.incidents) == (HangState.DOUBT, ())


def test_what_was_found_names_the_culprit() -> None:
    """The incident says who is behind whom, and the hang in the status names the rank and the incident."""
    state = judged(1)
    incident = the_incident(state)

    assert (incident.cause, incident.kind, incident.answer) == (Cause.HANG, FaultKind.HANG, Answer.RETRY_HERE)
    assert incident.culprit == Culprit(
        node=1, incarnation=1, host="host-1", rank=3, local_rank=1, pid=11, error="sleeping in t.py:9 nap",
        log_path="/logs/1", at=62.0, kind=FaultKind.HANG,
    )  # fmt: skip
    assert incident.reason == ("no progress of any rank for 1 min 1 s; rank 3 on node 1 (host-1): sleeping in t.py:9 nap")
    assert [(group.ranks, group.culprit, group.frames) for group in incident.evidence] == [
        ((3,), True, SLEEP),
        ((0, 1, 2), False, REDUCE),
    ]
    assert own(state).hang is not None
    assert (own(state).hang.state, own(state).hang.culprits, own(state).hang.incident) == (HangState.VERDICT, (3,), incident.id)


def test_a_verdict_does_not_wait_for_ever() -> None:
    """An agent that finds nothing, or is of an older version, holds nobody up."""
    state = say(hung(), says(0, evidence=found(0)), now=62.0)
    due = rendezvous.deadline(state)
    assert due == 61.0 + EVIDENCE_WITHIN

    state = rendezvous.tick(state, due)

    assert (
        the_incident(state).reason
        == "no progress of any rank for 1 min; no single rank causes it, because all ranks are in the same state"
    )
    assert the_incident(state).culprit is None
    assert (the_incident(state).id.node, the_incident(state).id.local_rank) == (-1, -1)


def test_log_only_is_a_line_in_the_story() -> None:
    """No incident, nothing restarted; the status still tells what is true."""
    state = judged(0)

    assert (state.incidents, state.state, state.events[-1].kind) == ((), JobState.RUNNING, "hang")
    assert own(state).hang is not None
    assert (own(state).hang.state, own(state).hang.incident) == (HangState.VERDICT, None)


def test_notify_is_an_incident_that_costs_nothing() -> None:
    """Nothing is restarted, no budget pays, and the verdict is given once."""
    state = judged(1, max_hangs=0)
    later = quiet(state, 62.0, 400.0)

    assert (the_incident(later).rung, the_incident(later).healed_at, later.state) == (Rung.NOTIFY, None, JobState.RUNNING)
    assert own(later).hang == own(state).hang
    assert state.settings.hangs.total(later.incidents, 1) == 0


def test_what_was_only_told_is_healed_by_life_and_may_come_again() -> None:
    """The second hang of a round is another incident."""
    state = say(judged(1), says(0, liveness=STEPS + 1), says(1), now=100.0)
    assert (own(state).hang, the_incident(state).healed_at) == (None, 100.0)

    now = 100.0
    while now < 160.0:
        now += 5.0
        state = say(state, says(0, liveness=STEPS + 1), says(1), now=now)
    state = rendezvous.tick(state, now + EVIDENCE_WITHIN)

    assert [incident.id.sequence for incident in sorted(state.incidents, key=lambda i: i.id.sequence)] == [1, 2]


def test_recover_restarts_the_workers() -> None:
    """As a collective that timed out does, and the budget of hangs pays."""
    state = judged(2)

    assert (the_incident(state).rung, state.state) == (Rung.RESTART_WORKERS, JobState.FORMING)
    assert isinstance(rendezvous.answer(state, "agent-0.1"), Regroup)
    assert state.settings.hangs.total(state.incidents, 1) == 1
    assert state.settings.restarts.total(state.incidents, 1) == 0


def test_a_new_round_knows_nothing_of_the_old_one() -> None:
    """What belonged to the dead round is gone: no doubt, no inquiry, no count."""
    state = say(judged(2), report(0, round_=1), report(1, round_=1), now=63.0)
    assert (state.state, state.fence.round, own(state).hang, own(state).inquiry) == (JobState.RUNNING, 2, None, None)

    state = say(state, says(0, liveness=0, round_=2), says(1, liveness=0, round_=2), now=64.0)

    assert (own(state).watch.round, own(state).watch.begun, own(state).watch.quiet) == (2, False, 0.0)


def test_a_spent_budget_ends_the_attempt() -> None:
    """What the job does then is the supervisor's to say."""
    state = judged(2, max_hangs=0)

    assert state.verdict is not None
    assert "restarts after a hang are disabled" in state.verdict.message
    assert the_incident(state).rung is Rung.EXIT


def test_off_is_off() -> None:
    """0 minutes: nobody looks."""
    off = dataclasses.replace(settings(), hang_downtime=0.0)
    state = quiet(say(watched(off), says(0), says(1), now=1.0), 1.0, 5000.0)

    assert (own(state).hang, state.incidents, state.state) == (None, (), JobState.RUNNING)


def test_who_is_done_is_not_waited_for() -> None:
    """A node whose workers ended well says nothing about the others, and is not asked."""
    state = say(watched(settings()), says(0), says(1), now=1.0)
    now = 1.0
    while now < 66.0:
        now += 5.0
        state = say(state, says(0), says(1, state=AgentState.DONE), now=now)

    assert rendezvous.answer(state, "agent-0.1") == build(Continue, fence=state.fence, evidence=1)
    assert rendezvous.answer(state, "agent-1.1") is None


def test_a_fault_ends_a_doubt() -> None:
    """The round is over, and so is what was thought of it."""
    broken = Culprit(node=0, host="host-0", rank=0, local_rank=0, exit_code=1)
    state = say(hung(until=41.0), report(0, AgentState.FAILED, 1, failures=(broken,)), now=42.0)

    assert (own(state).hang, the_incident(state).cause) == (None, Cause.PROCESS)


@pytest.mark.parametrize("until", [pytest.param(41.0, id="a doubt"), pytest.param(None, id="a verdict")])
def test_another_coordinator_takes_over_what_was_told(until: float | None) -> None:
    """It goes on to tell it, judges nothing twice, and takes it back when somebody shows a sign of life."""
    before = judged(1) if until is None else hung(1, until=until)
    status = codec.loads(JobStatus, codec.dumps(rendezvous.status(before, 63.0)))
    state = taken(before.settings, now=1000.0, previous=status)
    assert own(state).hang == own(before).hang

    state = say(state, says(0), says(1), now=1001.0)
    state = say(state, says(0, liveness=STEPS + 1), says(1), now=1002.0)

    assert (own(state).hang, len(state.incidents)) == (None, len(before.incidents))


@pytest.mark.parametrize("quiet", [pytest.param(None, id="from an older agent"), pytest.param(12.0, id="as old as they say")])
def test_another_coordinator_knows_how_old_the_last_sign_of_life_is(quiet: float | None) -> None:
    """The first report that it receives counts what its ranks have done so far, which may be long ago."""
    before = hung(until=21.0)
    state = rendezvous.new(
        before.settings,
        job="digits",
        uid="u1",
        attempt=1,
        term=2,
        now=21.0,
        previous=rendezvous.status(before, 21.0),
        registered=CAPABILITY,
    )
    worker = WorkerReport(local_rank=0, pid=10, liveness=STEPS, quiet=quiet)
    state = say(state, report(0, AgentState.RUNNING, 1, workers=(worker,)), now=22.0)

    assert StatusSection.of(rendezvous.status(state, 22.0)).lively_at == 22.0 - (quiet or 0.0)


def test_the_sign_of_life_of_another_coordinators_clock_is_not_in_the_future() -> None:
    """Its machine's clock may be ahead of ours."""
    before = rendezvous.status(say(watched(settings()), says(0), says(1), now=1000.0), 1000.0)
    state = taken(TWO, now=900.0, previous=before)

    assert StatusSection.of(rendezvous.status(state, 930.0)).lively_at == 900.0
