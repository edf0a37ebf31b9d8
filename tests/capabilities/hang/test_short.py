"""The short clock of the coordinator: what was learned finds a hang in seconds, and what was found must bear it out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.hang.coordinator import HangDetection
from rallypoint.capabilities.hang.state import HangSettings
from rallypoint.capabilities.hang.watch import MOVES, PACE
from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.wire import codec
from rallypoint.wire.hang import Evidence, HangState, RankSeen
from rallypoint.wire.incident import Rung
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.pulse import Learned, Phase
from rallypoint.wire.status import JobState, JobStatus
from tests.agent.test_rendezvous import TWO, report, say
from tests.capabilities.hang.jobs import own, pace, watched

STEPS = Learned(phase=Phase.STEP, count=500, p99=0.02, longest=0.05)
SAVES = Learned(phase=Phase.CHECKPOINT, count=3, p99=20.0, longest=20.0)
HANG = HangSettings(hang_downtime=600.0, hang_detection=2, report_interval=1.0)
CAPABILITY = (HangDetection(HANG),)


def says(node: int, *, quiet: float, now: float, learned: tuple[Learned, ...] = (STEPS,), **more: Any) -> AgentReport:
    """Return a report of two ranks whose last beat was `quiet` seconds ago."""
    told = {"phase": Phase.STEP, "liveness": 500, "beat": int((now - quiet) * 1000), "quiet": quiet, **more}
    round_, fields = told.pop("round_", 1), {}
    for name in ("evidence",):
        if name in told:
            fields[name] = told.pop(name)
    workers = tuple(WorkerReport(local_rank=n, pid=10 + n, **told) for n in (0, 1))
    return report(node, AgentState.RUNNING, round_, workers=workers, learned=learned, **fields)


def trained(settings: HangSettings = HANG, **more: Any) -> State:
    """Return a job whose ranks showed their last sign of life at 100 s, heard at once."""
    return say(watched(settings), says(0, quiet=0.0, now=100.0, **more), says(1, quiet=0.0, now=100.0, **more), now=100.0)


def silent(state: State, until: float, since: float = 100.0, every: float = 0.5, **more: Any) -> State:
    now = since
    while now < until:
        now = min(until, now + every)
        told = {"quiet": now - 100.0, "now": now, **more}
        state = say(state, says(0, **told), says(1, **told), now=now)
    return state


def found(*, busy: bool, stopped: bool, number: int) -> Evidence:
    state, cpu = ("R", 1.0) if busy else ("S", 0.0)
    ranks = [RankSeen(local_rank=n, pid=10 + n, state=state, cpu=cpu, frames=("t.py:9 work",)) for n in (0, 1)]
    if stopped:
        ranks[1] = RankSeen(local_rank=1, pid=11, state="T")
    return Evidence(round=1, number=number, ranks=tuple(ranks))


def answered(state: State, now: float, *, busy: bool = False, stopped: bool = False) -> State:
    """Let both agents answer the request of the coordinator."""
    number = 1 if own(state).inquiry is None else own(state).inquiry.number
    told: dict[str, Any] = {"quiet": now - 100.0, "now": now, "evidence": found(busy=busy, stopped=stopped, number=number)}
    return say(state, says(0, **told), says(1, **told), now=now)


def confirmed(state: State, now: float) -> State:
    """Let both agents answer with positive evidence, twice."""
    state = answered(state, now, stopped=True)
    assert (state.incidents, own(state).inquiry, pace(state)) == ((), None, PACE)
    state = silent(state, now + 1.0, now, every=PACE)
    assert own(state).inquiry is not None
    return answered(state, now + 1.2, stopped=True)


def test_a_hang_is_found_within_seconds() -> None:
    """Doubted after two, looked into after four: the floor for steps that take a fiftieth of one."""
    state = silent(trained(), 101.5)
    assert (own(state).hang, pace(state)) == (None, 0.0)

    state = silent(state, 102.0, 101.5)
    assert own(state).hang is not None
    assert (own(state).hang.state, own(state).inquiry, pace(state)) == (HangState.DOUBT, None, PACE)
    assert [event.kind for event in state.events if event.kind.startswith("hang")] == []

    state = silent(state, 104.0, 102.0)
    assert own(state).inquiry is not None
    assert (own(state).inquiry.since, pace(state)) == (104.0, 0.0)

    state = confirmed(state, 104.2)
    [incident] = state.incidents
    assert (incident.rung, incident.detected_at, state.state) == (Rung.RESTART_WORKERS, 104.0, JobState.FORMING)
    assert incident.rule == "hang_detection 2, step usually takes 20 ms; limit learned from this: 4.0 s; positive evidence"
    assert incident.reason.endswith("; ranks 1, 3 are stopped by a signal")


def test_what_is_not_borne_out_is_taken_back_and_looked_into_again_later() -> None:
    """All ranks compute: they may be at work on something that they do not tell. They are looked at again later."""
    state = answered(silent(trained(), 104.0), 104.2, busy=True)

    assert (state.incidents, own(state).inquiry, state.state) == ((), None, JobState.RUNNING)
    assert own(state).hang is not None
    assert own(state).hang.state is HangState.DOUBT
    state = silent(state, 107.5, 104.2)
    assert own(state).inquiry is None
    state = silent(state, 108.5, 107.5)
    assert own(state).inquiry is not None
    state = answered(state, 108.7)
    assert len(state.incidents) == 1


def test_a_silence_without_positive_evidence_is_notified_and_nothing_is_restarted() -> None:
    """All ranks sleep, in a child process say: an incident that no budget pays, once, and agents report as usual."""
    state = answered(silent(trained(), 104.0), 104.2)
    [incident] = state.incidents
    later = answered(silent(state, 108.5, 104.2), 108.7)

    assert (incident.rung, incident.detected_at, state.state) == (Rung.NOTIFY, 104.0, JobState.RUNNING)
    assert incident.answer is None
    assert incident.rule == "hang_detection 2, step usually takes 20 ms; limit learned from this: 4.0 s; no positive evidence"
    assert own(state).hang is not None
    assert (own(state).hang.state, own(state).hang.incident, pace(state)) == (HangState.DOUBT, incident.id, 0.0)
    assert (later.incidents, own(later).hang) == (state.incidents, own(state).hang)
    assert state.settings.hangs.total(later.incidents, 1) == 0
    assert [event.kind for event in later.events if event.kind.startswith("hang")] == []


def test_a_silence_that_ends_is_healed_and_was_nothing_to_speak_of() -> None:
    """The story of a job that did something else for a while has no line of it; one that took a minute has two."""
    state = answered(silent(trained(), 104.0), 104.2)
    short = say(state, says(0, quiet=0.0, now=112.0, liveness=501), now=112.0)
    long = answered(silent(answered(silent(state, 140.0, 104.2), 140.2), 164.5, 140.2), 164.7)
    over = say(long, says(0, quiet=0.0, now=170.0, liveness=501), now=170.0)

    assert (own(short).hang, short.incidents[0].healed_at) == (None, 112.0)
    assert [event.kind for event in short.events if event.kind.startswith("hang")] == []
    assert [event.kind for event in over.events if event.kind.startswith("hang")] == ["hang-doubt", "hang-over"]
    assert len(over.incidents) == 1


def test_positive_evidence_may_come_later() -> None:
    """Each look after the first one takes it, and it is confirmed like any other."""
    state = silent(answered(silent(trained(), 104.0), 104.2), 108.5, 104.2)
    state = answered(state, 108.7, stopped=True)
    state = answered(silent(state, 110.0, 108.7, every=PACE), 110.2, stopped=True)
    early, late = state.incidents

    assert (early.rung, early.healed_at, late.rung, late.detected_at) == (Rung.NOTIFY, 110.2, Rung.RESTART_WORKERS, 108.2)
    assert (state.state, state.settings.hangs.total(state.incidents, 1)) == (JobState.FORMING, 1)


def test_evidence_that_is_not_confirmed_restarts_nothing() -> None:
    """A process was stopped for a moment, by whoever looked at it."""
    state = answered(silent(trained(), 104.0), 104.2, stopped=True)
    state = answered(silent(state, 105.2, 104.2, every=PACE), 105.4)

    assert [incident.rung for incident in state.incidents] == [Rung.NOTIFY]
    assert (state.state, own(state).watch.found) == (JobState.RUNNING, None)


def test_a_sign_of_life_forgets_the_evidence() -> None:
    """What was found before it is of another silence."""
    state = answered(silent(trained(), 104.0), 104.2, stopped=True)
    state = say(state, says(0, quiet=0.0, now=104.5, liveness=501), now=104.5)

    assert (own(state).watch.found, own(state).watch.not_before, state.incidents) == (None, 0.0, ())


def test_another_coordinator_goes_on_where_a_silence_was_only_notified() -> None:
    """It restarts the workers when `hang_downtime` is over."""
    before = answered(silent(trained(), 104.0), 104.2)
    again = taken(uid="u1", attempt=1, previous=published(before, 105.0))
    state = say(again, says(0, quiet=5.0, now=105.0), says(1, quiet=5.0, now=105.0), now=105.0)
    for now in range(106, 800):
        state = (
            answered(state, float(now)) if own(state).inquiry is not None else silent(state, float(now), now - 1.0, every=1.0)
        )
        if state.state is not JobState.RUNNING:
            break
    *early, last = sorted(state.incidents, key=lambda one: one.detected_at)
    assert (last.rung, {one.rung for one in early}) == (Rung.RESTART_WORKERS, {Rung.NOTIFY})
    assert last.rule == "hang_detection 2, hang_downtime 10 min"


def test_ranks_that_have_left_their_world_are_no_reason_for_doubt() -> None:
    """They upload results, draw pictures, clean up: nobody waits for them."""
    state, now = trained(), 100.0
    while now < 160.0:
        now += 0.5
        left: dict[str, Any] = {"quiet": now - 100.0, "now": now, "finished": True}
        state = say(state, says(0, **left), says(1, **left), now=now)

    assert (own(state).hang, own(state).inquiry) == (None, None)


def test_hang_downtime_is_the_upper_bound_whatever_they_compute() -> None:
    """The long clock asks for nothing to be borne out."""
    state = silent(answered(silent(trained(), 104.0), 104.2, busy=True), 699.0, 104.2, every=1.0)
    assert state.incidents == ()

    # Between two looks the verdict may be due at any report; the agents answer each request.
    for now in range(700, 720):
        state = answered(state, float(now), busy=True)
    assert [incident.rule for incident in state.incidents] == ["hang_detection 2, hang_downtime 10 min"]


@pytest.mark.parametrize(
    ("more", "found_by"),
    [
        pytest.param({"phase": Phase.CHECKPOINT, "learned": (STEPS, SAVES)}, 148.0, id="a checkpoint has its own bound"),
        pytest.param({"phase": Phase.EVALUATION}, None, id="the first evaluation may take as long as it likes"),
        pytest.param({"phase": Phase.STEP, "learned": (dataclasses.replace(STEPS, count=5),)}, None, id="too few steps"),
        pytest.param({"phase": None}, None, id="ranks that tell no phase"),
    ],
)
def test_a_phase_has_its_own_bound(more: dict[str, Any], found_by: float | None) -> None:
    """What is not known has `hang_downtime`."""
    state, now = trained(**more), 100.0
    while own(state).inquiry is None and now < 200.0:
        state, now = silent(state, now + 1.0, now, every=1.0, **more), now + 1.0

    assert (None if own(state).inquiry is None else now) == found_by


def test_it_can_be_switched_off() -> None:
    """`health.hang_learning: false`."""
    off = dataclasses.replace(HANG, hang_learning=False)

    assert own(silent(trained(off), 300.0)).inquiry is None


@pytest.mark.parametrize("field", ["output", "moved"])
def test_a_rank_that_writes_or_reads_is_busy_with_something(field: str) -> None:
    """Lines in the log, bytes to and from files: the short clock begins anew with each, the long one does not."""
    state, now = trained(), 100.0
    for number in range(1, 60):
        state = silent(state, now + 3.0, now, every=1.0, **{field: number * MOVES})
        now += 3.0
    assert own(state).inquiry is None
    assert own(state).watch.quiet == pytest.approx(177.0)

    assert own(silent(state, now + 5.0, now, every=1.0, **{field: 59 * MOVES})).inquiry is not None


def test_how_old_the_last_beat_was_counts() -> None:
    """An agent speaks once in a second; what it tells may be nearly as old."""
    late = says(0, quiet=0.9, now=100.9), says(1, quiet=0.9, now=100.9)
    state = say(watched(HANG), *late, now=100.9)

    assert own(silent(state, 104.5, 100.9)).inquiry is not None
    assert own(silent(state, 103.9, 100.9)).inquiry is None


def test_a_gap_is_not_silence() -> None:
    """Agents or a coordinator that were stopped: it counts as a report and a half."""
    state = silent(trained(), 101.0)
    state = silent(state, 1000.0, 101.0, every=899.0)

    assert (own(state).watch.brisk, own(state).inquiry) == (2.5, None)


def test_a_rank_that_has_ended_says_nothing_about_the_phase() -> None:
    """Its last phase is over."""
    now, state = 100.0, trained()
    while now < 105.0:
        now += 0.5
        gone = WorkerReport(local_rank=0, pid=10, liveness=500, phase=Phase.EVALUATION, beat=100000, quiet=0.0, ended=True)
        lives = WorkerReport(local_rank=1, pid=11, liveness=500, phase=Phase.STEP, beat=100000, quiet=now - 100.0)
        reports = (report(n, AgentState.RUNNING, 1, workers=(gone, lives), learned=(STEPS,)) for n in (0, 1))
        state = say(state, *reports, now=now)

    assert own(state).inquiry is not None


def published(state: State, now: float) -> JobStatus:
    return codec.loads(JobStatus, codec.dumps(rendezvous.status(state, now)))


def taken(*, uid: str, attempt: int, previous: JobStatus) -> State:
    more = {"previous": previous, "registered": CAPABILITY}
    return rendezvous.new(TWO, job="digits", uid=uid, attempt=attempt, term=2, now=0.0, **more)  # type: ignore[arg-type]


def test_a_new_coordinator_and_a_new_attempt_begin_with_what_was_learned() -> None:
    """It stands in the status; of another job of the same name nobody takes it."""
    status = published(silent(trained(), 131.0, every=1.0), 131.0)
    assert [(one.phase, one.count, one.ranks) for one in StatusSection.of(status).learned] == [(Phase.STEP, 500, 4)]

    again = taken(uid="u1", attempt=1, previous=status)
    attempt = taken(uid="u1", attempt=2, previous=status)
    other = taken(uid="u2", attempt=1, previous=status)

    assert own(again).before == own(attempt).before == StatusSection.of(status).learned
    assert (attempt.closed.first_step, own(attempt).hang, own(other).before) == (None, None, ())


def test_a_restart_forgets_the_hang_and_keeps_what_was_learned() -> None:
    """The round that hung is over: its watch is, too; how long steps take is known in the next one from its first report."""
    state = confirmed(silent(trained(), 104.0), 104.2)
    state = say(state, report(0, AgentState.WAITING, 1), report(1, AgentState.WAITING, 1), now=105.0)
    assert (state.state, state.fence.round) == (JobState.RUNNING, 2)

    begin: dict[str, Any] = {"round_": 2, "learned": (), "liveness": 0, "phase": Phase.START_UP, "quiet": 0.0}
    state = say(state, says(0, now=110.0, **begin), says(1, now=110.0, **begin), now=110.0)

    assert (own(state).hang, own(state).watch.round, own(state).watch.begun, own(state).watch.brisk) == (None, 2, False, 0.0)
    assert [(one.phase, one.p99) for one in own(state).before] == [(Phase.STEP, 0.02)]
