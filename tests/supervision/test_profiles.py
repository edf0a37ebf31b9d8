"""What is different in the three profiles, told as traces of jobs whose nodes we make ourselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.simulation.simulator import Frame, simulate
from rallypoint.supervision.actions import RemoveNode
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.plan import Profile, Refill, Scheduling
from rallypoint.wire.status import NODE_LOST, JobState, Outcome, Verdict
from tests.supervision.worlds import running

EIGHT = "RRRRRRRR"


def run(policy: Policy, *steps: dict[str, Any], until: float = 0.0, **trace: Any) -> tuple[Frame, ...]:
    """Run a trace; every promise of the core must have been kept."""
    frames = simulate(policy, {"makers": "supervisor", "until": until, "steps": list(steps), **trace})
    assert not [f.violations for f in frames if f.violations]
    return frames


def last(policy: Policy, *steps: dict[str, Any], until: float = 0.0, **trace: Any) -> Frame:
    """Run a trace; return where it ends."""
    return run(policy, *steps, until=until, **trace)[-1]


def ladder(minimum: int = 1, maximum: int = 2, **fields: Any) -> Policy:
    """An elastic job."""
    return Policy(min_nodes=minimum, max_nodes=maximum, **fields)


# --- ladder ----------------------------------------------------------------------------------------------------------------


def test_the_ladder_replaces_a_lost_node_and_goes_on() -> None:
    """The world trains at or above MIN meanwhile: no reset, one incident, the next incarnation of that slot."""
    frame = last(ladder(), {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, startup=1.0, until=200)
    assert (frame.phase, frame.retries) == (Phase.RUNNING, 0)
    assert [(s.node, s.incarnation, s.lost_clock) for s in frame.record.slots] == [(0, 1, None), (1, 2, None)]
    assert [i.cause for i in frame.record.incidents] == [Cause.NODE]


def test_a_slot_whose_budget_is_spent_stays_empty_above_min() -> None:
    """Each slot has its own budget; a job that still has MIN nodes goes on without the others."""
    losses = [{"at": 100.0 * n, "pods": "R" + "L"} for n in range(1, 5)]
    frame = last(ladder(node_replacements=3), {"at": 10, "pods": "RR"}, *losses, startup=1.0, until=2000)
    assert frame.phase is Phase.RUNNING
    assert [(s.incarnation, s.lost_clock is None) for s in frame.record.slots] == [(1, True), (4, False)]


def test_below_min_the_job_resets_after_the_failure_grace() -> None:
    """Only when fewer than MIN live or can come back, and for the whole grace."""
    frames = run(ladder(2, 2, node_replacements=0), {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=161)
    at = {f.at: f.phase for f in frames}
    assert at[100] is Phase.RUNNING
    assert at[160] is Phase.RESETTING


def test_a_flagged_host_is_left_for_nothing() -> None:
    """The node is replaced while it still runs, and ended gracefully; no budget pays."""
    frame = last(ladder(node_replacements=0), {"at": 10, "pods": "RR"}, {"at": 100, "pods": "R R!"})
    assert [(s.node, s.incarnation) for s in frame.record.slots] == [(0, 1), (1, 2)]
    assert [i.cause for i in frame.record.incidents] == [Cause.EVACUATION]
    assert RemoveNode(attempt=1, node=1, incarnation=1, force=False) in frame.actions


def test_a_preempted_node_costs_nothing() -> None:
    """It is replaced as often as somebody takes its room."""
    losses = [{"at": 100.0 * n, "pods": "R" + "F(preempted)"} for n in range(1, 8)]
    frame = last(ladder(2, 2, node_replacements=1), {"at": 10, "pods": "RR"}, *losses, startup=1.0, until=2000)
    assert frame.phase is Phase.RUNNING
    assert frame.record.slots[1].incarnation == 8


def test_a_node_that_can_never_start_fails_the_first_attempt() -> None:
    """A bad image is not tried four times over."""
    frame = last(ladder(), {"at": 5, "pods": "R F(start-failed)"})
    assert (frame.phase, frame.verdict and frame.verdict.reason) == (Phase.FAILED, "StartFailed")


def test_a_replacement_that_can_never_start_is_one_fault_of_its_node() -> None:
    """The job runs already: it goes on."""
    steps = [{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL", "create_error": {"reason": "no such image", "fatal": True}}]
    frame = last(ladder(node_replacements=2), *steps, until=300)
    assert frame.phase is Phase.RUNNING
    assert frame.record.slots[1].incarnation == 3


# --- pending ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "minimum", "pods", "ends"),
    [
        pytest.param(-1, 2, "RN", None, id="-1 is no check at all"),
        pytest.param(0, 2, "RN", None, id="0 judges nobody"),
        pytest.param(1, 2, "RN", 100.0, id="1 fails below MIN"),
        pytest.param(1, 1, "RN", None, id="1 lets a job at MIN go on"),
        pytest.param(2, 1, "RN", 100.0, id="2 fails for any"),
        pytest.param(2, 1, "RG", None, id="2 does not count who waits for quota"),
        pytest.param(1, 2, "GG", None, id="1 does not count who waits for quota"),
    ],
)
def test_pending_fail_strategy(strategy: int, minimum: int, pods: str, ends: float | None) -> None:
    """`pending_timeout` starts when pods exist (here at once); -1 and 0 never fail a job, and a failure is final."""
    policy = ladder(minimum, pending_timeout=100.0, pending_fail_strategy=strategy)
    frames = run(policy, {"at": 10, "pods": pods, "status": "auto"}, until=5000)
    failed = next((f.at for f in frames if f.phase is Phase.FAILED), None)
    assert failed == ends
    assert all(f.retries == 0 for f in frames)
    if ends is not None:
        assert frames[-1].verdict is not None
        assert frames[-1].verdict.reason == "PendingTimeout"


def test_strategy_0_warns_once_an_attempt() -> None:
    """And -1 does not even do that."""
    warned = [
        [e.at for f in run(ladder(2, pending_timeout=100.0, pending_fail_strategy=s), {"at": 10, "pods": "RN"}, until=900)
         for e in f.events if e.kind == "pending-timeout"]
        for s in (0, -1)
    ]  # fmt: skip
    assert warned == [[100.0], []]


def test_a_timeout_of_zero_is_off() -> None:
    """As the seed has it: 0 or more seconds, and 0 is no clock."""
    frames = run(ladder(2, pending_timeout=0.0), {"at": 10, "pods": "RN"}, until=5000)
    assert frames[-1].phase is Phase.RUNNING


def test_a_late_loss_does_not_inherit_an_old_wait() -> None:
    """A pod that has waited above MIN for an hour is no reason to end the job when another one is lost."""
    policy = ladder(2, 3, pending_timeout=100.0)
    steps = [{"at": 10, "pods": "RRN"}, {"at": 4000, "pods": "R L N"}, {"at": 4050, "pods": "R R N"}]
    frames = run(policy, *steps, until=9000)
    assert all(f.phase is Phase.RUNNING for f in frames[1:])


def test_appwrapper_judges_an_unschedulable_pod_by_warm_up() -> None:
    """It has no pending clock: warm-up, and the failure grace after it."""
    policy = Policy(min_nodes=2, max_nodes=2, profile=Profile.APPWRAPPER, pending_timeout=100.0)
    at = {f.at: f.phase for f in run(policy, {"at": 10, "pods": "RN"}, until=361)}
    assert Phase.FAILED not in at.values()
    assert at[360] is Phase.RESETTING


def test_waiting_for_quota_starts_no_clock() -> None:
    """However long it takes; afterwards every grace is whole."""
    policy = ladder(2, 2, warmup_grace=50.0, admission_grace=50.0, pending_timeout=50.0, failure_grace=0.0)
    frames = run(policy, {"at": 1, "pods": "GG"}, {"at": 5000, "pods": "PP"}, until=6000)
    assert all(f.phase is Phase.RUNNING for f in frames if 1 <= f.at < 5050)
    assert next(f.at for f in frames if f.phase is Phase.FAILED) == 5050


# --- appwrapper ------------------------------------------------------------------------------------------------------------


def test_appwrapper_replaces_nothing() -> None:
    """A lost node is tolerated for the failure grace, and then everything starts again."""
    policy = Policy(min_nodes=2, max_nodes=2, profile=Profile.APPWRAPPER)
    frames = run(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, removal=1.0, until=400)
    at = {f.at: (f.phase, f.retries) for f in frames}
    assert at[100] == (Phase.RUNNING, 0)
    assert at[160] == (Phase.RESETTING, 1)
    assert frames[-1].attempt == 2


def test_a_pod_that_was_deleted_from_outside_is_a_pod_fault() -> None:
    """It is not created again under its old name, and the job does not end for it."""
    frame = last(ladder(), {"at": 10, "pods": "RR"}, {"at": 100, "pods": "R-"}, startup=1.0, until=200)
    assert [(s.node, s.incarnation) for s in frame.record.slots] == [(0, 1), (1, 2)]
    assert "deleted by another client" in frame.record.incidents[0].reason


def test_the_job_s_own_folder_deleted_from_outside_ends_the_job() -> None:
    """It stands for the job, whatever still runs."""
    frame = last(ladder(), {"at": 10, "pods": "RR"}, {"at": 100, "component": "missing"})
    assert (frame.phase, frame.verdict and frame.verdict.reason) == (Phase.FAILED, "MissingComponent")


# --- budgets and progress --------------------------------------------------------------------------------------------------


def attempts_that_reach(*steps: int) -> list[dict[str, Any]]:
    """Return a trace of attempts that each report a step and fail 10 seconds later; a pause of 5 s lies between them."""
    told: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        start = 100.0 * number
        told.append({"at": start + 10, "pods": "R", "step": step})
        told.append({"at": start + 20, "verdict": {"outcome": "failed", "reason": "WorkersFailed", "message": "rank 0 failed"}})
        told.append({"at": start + 25, "gone": True, "pods": None})
    return [{k: v for k, v in line.items() if v is not None} for line in told]


def test_attempts_without_a_newer_step_end_the_job() -> None:
    """The budget would allow many more: they bring nothing."""
    policy = ladder(1, 1, retry_limit=100, retry_pause=5.0, no_progress_limit=3)
    frame = last(policy, *attempts_that_reach(10, 20, 20, 15, 20))
    assert (frame.phase, frame.verdict and frame.verdict.reason) == (Phase.FAILED, "NoProgress")
    assert frame.attempt == 5


def test_attempts_that_get_further_go_on() -> None:
    """Whoever gets further each time is not stopped."""
    policy = ladder(1, 1, retry_limit=100, retry_pause=5.0, no_progress_limit=2)
    assert last(policy, *attempts_that_reach(10, 20, 30, 40, 50)).phase is Phase.RESETTING


def test_a_window_of_the_reset_budget() -> None:
    """Two resets are allowed within 150 s: the third within it fails, one outside of it does not."""
    limits = {"retry_limit": 2, "retry_pause": 5.0}
    steps = attempts_that_reach(1, 2, 3)
    assert last(ladder(1, 1, **limits), *steps).phase is Phase.FAILED
    assert last(ladder(1, 1, **limits, reset_refill=Refill(window=150.0)), *steps).phase is Phase.RESETTING


def test_a_newer_checkpoint_refills_the_reset_budget() -> None:
    """Off by default; where it is on, an attempt that got a checkpoint further has paid for its reset."""
    steps = attempts_that_reach(1, 2, 3)
    for number, line in enumerate(steps):
        if "step" in line:
            line["checkpoint"] = f"step-{number}"
    policy = ladder(1, 1, retry_limit=1, retry_pause=5.0, reset_refill=Refill(on_checkpoint=True))
    assert last(policy, *steps).phase is Phase.RESETTING
    assert last(ladder(1, 1, retry_limit=1, retry_pause=5.0), *steps).phase is Phase.FAILED


# --- mindcluster -----------------------------------------------------------------------------------------------------------


def mindcluster(retry_limit: int = 0, minimum: int = 8, **settings: Any) -> Policy:
    """A job of eight pods under MindCluster's rules."""
    scheduling = Scheduling(fault_retry_times=retry_limit, **settings)
    return Policy(min_nodes=minimum, max_nodes=8, profile=Profile.MINDCLUSTER, retry_limit=retry_limit, scheduling=scheduling)


GRACE: dict[str, Any] = {"fault_scheduling": "grace"}
PODS: dict[str, Any] = {**GRACE, "pod_rescheduling": True}
TRAINS = {"at": 5, "pods": EIGHT}


@pytest.mark.parametrize(
    ("policy", "pods", "phase", "replaced"),
    [
        pytest.param(mindcluster(), "RRR!RRRRR", Phase.RUNNING, [], id="V1 fault-scheduling absent"),
        pytest.param(mindcluster(**GRACE), "RRR!RRRRR", Phase.RESETTING, [], id="V2 job-level"),
        pytest.param(mindcluster(**PODS), "RRRLRRRR", Phase.RUNNING, [3], id="V3 only pod 3"),
        pytest.param(mindcluster(**PODS), "LRRRRRRR", Phase.RESETTING, [], id="V4 rank 0"),
        pytest.param(mindcluster(**GRACE), "RRF(1)RRRRR", Phase.RUNNING, [], id="V8 fault-retry-times absent"),
        pytest.param(mindcluster(**GRACE), "RRR!RRRRR", Phase.RESETTING, [], id="V9 hardware needs no budget"),
        pytest.param(
            mindcluster(**GRACE, process_recover="on", recover_strategy=("recover",), graceful_tolerance=True),
            "RRRLRRRR", Phase.RESETTING, [], id="V12 graceful tolerance",
        ),
        pytest.param(
            mindcluster(**GRACE, process_recover="pause", recover_strategy=("recover",)),
            "RRRLRRRR", Phase.RESETTING, [], id="V13 paused by the user",
        ),
        pytest.param(
            mindcluster(**GRACE, process_recover="on", recover_strategy=("recover",)),
            "RRRLRRRR", Phase.RUNNING, [3], id="recover replaces the pod alone",
        ),
    ],
)  # fmt: skip
def test_what_a_fault_restarts(policy: Policy, pods: str, phase: Phase, replaced: list[int]) -> None:
    """The scheduler's rules decide in the job's own machine."""
    frame = last(policy, TRAINS, {"at": 100, "pods": pods})
    assert frame.phase is phase
    assert [s.node for s in frame.record.slots if s.incarnation > 1] == replaced


@pytest.mark.parametrize(
    ("told", "phase"),
    [
        pytest.param("rank 3 has the policy reset", Phase.RESETTING, id="V12 an entry in the reset file"),
        pytest.param("", Phase.RUNNING, id="none"),
    ],
)
def test_an_entry_of_graceful_tolerance_leads_to_job_level(told: str, phase: Phase) -> None:
    """The coordinator tells of it; a lost pod beside rank 0's would be replaced alone otherwise."""
    policy = mindcluster(**GRACE, process_recover="on", recover_strategy=("recover",))
    world = running(dataclasses.replace(policy, min_nodes=2, max_nodes=2))
    world.tells()
    assert world.status is not None
    world.status = dataclasses.replace(world.status, tolerance=told)
    world.ends(world.node(1), state=NodeState.LOST, exit_code=None)
    world.turn(20.0)
    assert world.record.phase is phase


def test_a_deleted_pod_whose_agent_took_its_leave_is_a_lost_host() -> None:
    """The coordinator's incident has the same node and incarnation as the loss; it does not make it the end of a container."""
    world = running(dataclasses.replace(mindcluster(**GRACE), min_nodes=2, max_nodes=2))
    world.tells()
    assert world.status is not None
    leaves = Incident(
        id=IncidentId(attempt=1, round=1, node=1, sequence=1),
        cause=Cause.SCALE,
        rung=Rung.RESTART_WORKERS,
        reason="node 1 leaves: its agent was ended by SIGTERM",
        detected_at=19.0,
    )
    world.status = dataclasses.replace(world.status, incidents=(leaves,))
    world.ends(world.node(1), state=NodeState.LOST, exit_code=None, reason="its pod was deleted from outside")
    world.turn(20.0)

    assert (world.record.phase, len(world.record.charges)) == (Phase.RESETTING, 0)


@pytest.mark.parametrize(
    ("rung", "waits"), [(Rung.DUMP, True), (Rung.EXIT, False)], ids=["its checkpoint is being saved", "nothing to save"]
)
def test_a_drained_pod_is_waited_for_as_long_as_its_last_checkpoint_takes(rung: Rung, *, waits: bool) -> None:
    """Its container has exited after SIGTERM, which costs nothing of fault-retry-times."""
    policy = mindcluster(**GRACE, process_recover="on", recover_strategy=("recover", "dump"))
    world = running(dataclasses.replace(policy, min_nodes=2, max_nodes=2))
    world.tells(JobState.FORMING)
    assert world.status is not None
    leaves = Incident(
        id=IncidentId(attempt=1, round=1, node=0, sequence=1),
        cause=Cause.SCALE,
        rung=rung,
        reason="node 0 leaves: its agent was ended by SIGTERM",
        detected_at=19.0,
    )
    world.status = dataclasses.replace(world.status, incidents=(leaves,))
    world.ends(world.node(0), exit_code=143)
    world.turn(20.0)
    assert world.record.phase is (Phase.RUNNING if waits else Phase.RESETTING)

    if not waits:
        assert len(world.record.charges) == 0
        return
    world.turn(80.0)  # longer than the coordinator has to begin
    assert world.record.phase is Phase.RUNNING
    verdict = Verdict(outcome=Outcome.FAILED, reason=NODE_LOST, message="saved a last checkpoint of step 7: step-7")
    world.status = dataclasses.replace(world.status, state=JobState.FAILED, verdict=verdict)
    world.turn(81.0)
    assert (world.record.phase, len(world.record.charges)) == (Phase.RESETTING, 0)


def test_v3_after_twelve_checks_everything_is_rescheduled() -> None:
    """The replaced pod stays pending: one check a second, and at the twelfth the job is reset; that costs nothing."""
    frames = run(mindcluster(**PODS), TRAINS, {"at": 100, "pods": "RRRLRRRR"}, until=130)
    assert next(f.at for f in frames if f.phase is Phase.RESETTING) == 112
    assert frames[-1].retries == 0


def test_v7_the_fourth_end_of_a_container_is_left_alone() -> None:
    """Three restarts; the fourth is answered by nobody, and after the failure grace the job has failed."""
    faults = [{"at": 100.0 + 200 * n, "pods": "RRF(1)RRRRR"} for n in range(4)]
    frames = run(mindcluster(3, **GRACE), TRAINS, *faults, startup=1.0, removal=1.0, until=900)
    assert [f.at for f in frames if Phase.RESETTING in f.phases] == [100, 300, 500]
    assert frames[-1].retries == 3
    assert next(f.at for f in frames if f.phase is Phase.FAILED) == 760


def test_v11_a_stuck_deletion_is_forced_after_900_seconds() -> None:
    """`grace` deletes gracefully, and by force when its time is over; `force` does so at once."""

    def forced(mode: str) -> float:
        frames = run(mindcluster(fault_scheduling=mode), TRAINS, {"at": 100, "pods": "RRRLRRRR"}, until=1100)
        return next(
            f.at
            for f in frames
            if any(getattr(a, "force", False) and a.node == 1 for a in f.actions if isinstance(a, RemoveNode))
        )

    assert 1000 < forced("grace") <= 1002
    assert forced("force") == 100


def test_a_pod_that_does_not_come_back_in_time_pauses_recovery() -> None:
    """After wait-reschedule-timeout the scheduler decides, which asks for the whole job; elastic-training goes on instead."""
    recover = mindcluster(**GRACE, process_recover="on", recover_strategy=("recover",))
    frames = run(recover, TRAINS, {"at": 100, "pods": "RRRLRRRR"}, until=400)
    assert next(f.at for f in frames if f.phase is Phase.RESETTING) == 370

    both = mindcluster(minimum=4, **GRACE, process_recover="on", recover_strategy=("recover", "elastic-training"))
    assert last(both, TRAINS, {"at": 100, "pods": "RRRLRRRR"}, until=900).phase is Phase.RUNNING
