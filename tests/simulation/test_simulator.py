from __future__ import annotations

import dataclasses

import pytest

from rallypoint.simulation.simulator import simulate
from rallypoint.supervision.actions import CreateNode, RemoveComponents, RemoveNode
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.wire.codec import WireError
from rallypoint.wire.incident import Cause
from rallypoint.wire.plan import Profile

LADDER = Policy(min_nodes=1, max_nodes=2)
APPWRAPPER = Policy(min_nodes=2, max_nodes=2, profile=Profile.APPWRAPPER)
WRAPPED = dataclasses.replace(APPWRAPPER, wrapped=True)

both_machines = pytest.mark.parametrize(
    "policy", [pytest.param(APPWRAPPER, id="own pods"), pytest.param(WRAPPED, id="wrapped components")]
)


def _at(frames, second):
    """Return the last frame of a second; whatever else is tested, no promise may be broken."""
    assert [frame.violations for frame in frames if frame.violations] == []
    return [frame for frame in frames if frame.at == second][-1]


def _story(frames):
    """Return what was entered, and when."""
    assert [frame.violations for frame in frames if frame.violations] == []
    return [(frame.at, phase.value) for frame in frames for phase in frame.phases]


@both_machines
def test_a_failure_costs_a_retry_after_its_grace(policy):
    """The trace of a failure: tolerated, reset, gone, pause, and the next attempt, each at its second."""
    trace = [
        {"at": 10, "pods": "RR"},
        {"at": 100, "pods": "R,F(1)"},
        {"at": 159},
        {"at": 160},
        {"at": 165, "gone": True},
        {"at": 254},
        {"at": 255},
    ]

    frames = simulate(policy, trace)

    assert _story(frames) == [
        (0, "Resuming"),
        (0, "Running"),
        (160, "Resetting"),
        (255, "Resuming"),
        (255, "Running"),
    ]
    assert _at(frames, 100).conditions["Unhealthy"].reason == "FoundFailedPods"
    assert [(d.clock, frame.due(d)) for frame in [_at(frames, 159)] for d in frame.deadlines] == [("failure", 160)]
    assert (_at(frames, 255).retries, _at(frames, 255).attempt) == (1, 2)


@both_machines
def test_deadlines_between_the_steps_are_kept(policy):
    """The supervisor wakes by itself: what happens at 160 happens at 160, though the trace says nothing there."""
    frames = simulate(policy, [{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RF(1)"}, {"at": 500}])

    assert (160, "Resetting") in _story(frames)
    assert [frame.step for frame in frames if frame.at == 160] == [None]


def test_nothing_goes_before_the_trace_says_so():
    """What was asked to go is seen being deleted, for as long as the trace does not say that it is gone."""
    policy = dataclasses.replace(WRAPPED, failure_grace=0.0, forceful_deletion_grace=30.0)

    frames = simulate(policy, [{"at": 10, "pods": "RF(1)"}, {"at": 40}, {"at": 41}])

    assert _at(frames, 10).actions == (RemoveComponents(force=False),)
    assert not any(isinstance(a, RemoveNode) for a in _at(frames, 40).actions)
    assert [a.force for a in _at(frames, 41).actions if isinstance(a, RemoveNode)] == [True, True]
    assert _at(frames, 41).phase is Phase.RESETTING


@both_machines
def test_things_may_go_and_start_by_themselves(policy):
    """With `startup` and `removal` a trace need not tell what every cluster does: a whole retry from one line."""
    trace = {"startup": 20, "removal": 5, "until": 300, "steps": [{"at": 100, "pods": "RF(1)"}]}

    frames = simulate(policy, trace)

    assert _story(frames)[2:] == [(160, "Resetting"), (255, "Resuming"), (255, "Running")]
    assert _at(frames, 275).conditions["PodsReady"].value is True


def test_a_lost_pod_of_a_ladder_is_replaced():
    """Pods are told of the incarnation that is wanted: the second loss is the replacement's."""
    trace = {"startup": 5, "until": 200, "steps": [{"at": 50, "pods": "=F(1)"}, {"at": 100, "pods": "=L"}]}

    frames = simulate(LADDER, trace)

    assert _story(frames) == [(0, "Resuming"), (0, "Running")]
    assert CreateNode(attempt=1, node=1, incarnation=2) in _at(frames, 50).actions
    assert CreateNode(attempt=1, node=1, incarnation=3) in _at(frames, 100).actions
    lost = [i for i in _at(frames, 100).record.incidents if i.cause is Cause.NODE]
    assert [i.id.sequence for i in lost] == [1, 2]


def test_a_pod_that_the_trace_leaves_out_was_not_created_yet():
    """Three of four pods exist: the fourth was asked for and has not come; it was not deleted by another client."""
    policy = dataclasses.replace(APPWRAPPER, min_nodes=4, max_nodes=4)

    frames = simulate(policy, [{"at": 5, "pods": "PPR"}, {"at": 59}, {"at": 60}, {"at": 120}])

    assert _at(frames, 59).record.incidents == ()
    assert _at(frames, 60).conditions["Unhealthy"].reason == "InsufficientPodsReady"
    assert _at(frames, 120).phase is Phase.RESETTING


def test_a_pod_that_vanishes_was_there():
    """A slot that was told before and is told as none has lost its pod."""
    frames = simulate(APPWRAPPER, [{"at": 5, "pods": "RR"}, {"at": 50, "pods": "R-"}])

    assert _at(frames, 50).conditions["Unhealthy"].reason == "FoundFailedPods"


@both_machines
@pytest.mark.parametrize(
    ("step", "phase", "reason"),
    [
        pytest.param({"create_error": {"reason": "bad image", "fatal": True}}, Phase.FAILED, "CreateFailed", id="fatal"),
        pytest.param({"create_error": "no room"}, Phase.RESUMING, "Resuming", id="not fatal"),
        pytest.param({"suspend": True}, Phase.SUSPENDED, None, id="suspended"),
        pytest.param({"quota": False}, Phase.SUSPENDED, None, id="no quota"),
        pytest.param({"delete": True}, Phase.TERMINATING, None, id="deleted"),
    ],
)
def test_a_submission_may_go_another_way(policy, step, phase, reason):
    """What is told at second 0 is so when the job is submitted."""
    frame = _at(simulate(policy, [{"at": 0, **step}]), 0)

    assert frame.phase is phase
    assert reason is None or frame.conditions["Unhealthy"].reason == reason


@both_machines
def test_a_creation_that_fails_may_work_again(policy):
    """Errors last until an empty one ends them; the supervisor tries again meanwhile."""
    frames = simulate(policy, [{"at": 0, "create_error": "no room"}, {"at": 30, "create_error": ""}, {"at": 31}])

    assert _story(frames) == [(0, "Resuming"), (30, "Running")]


@both_machines
def test_suspension_is_finished_before_it_is_taken_back(policy):
    """Everything goes first; then the job resumes in the same moment, and nothing was charged."""
    trace = [
        {"at": 10, "pods": "RR"},
        {"at": 100, "suspend": True},
        {"at": 102, "suspend": False},
        {"at": 105, "gone": True},
    ]

    frames = simulate(policy, trace)

    assert _story(frames)[2:] == [(100, "Suspending"), (105, "Suspended"), (105, "Resuming"), (105, "Running")]
    assert _at(frames, 105).retries == 0


@pytest.mark.parametrize(
    ("component", "phase"),
    [
        pytest.param("missing", Phase.FAILED, id="missing"),
        pytest.param("deleting", Phase.FAILED, id="being deleted"),
        pytest.param("failed", Phase.RESETTING, id="failed"),
        pytest.param("there", Phase.RUNNING, id="there"),
    ],
)
def test_components_are_told(component, phase):
    """A wrapped component has a life of its own."""
    frames = simulate(WRAPPED, [{"at": 10, "pods": "RR"}, {"at": 100, "component": component}])

    assert _at(frames, 100).phase is phase


@both_machines
def test_all_pods_well_is_success(policy):
    """Where Rallypoint's own coordinator speaks it says so, too: an agent ends well only after its word."""
    frames = simulate(policy, [{"at": 10, "pods": "RR"}, {"at": 70, "pods": "RS"}, {"at": 130, "pods": "SS"}])

    assert _at(frames, 70).phase is Phase.RUNNING
    assert _at(frames, 130).phase is Phase.SUCCEEDED


def test_a_verdict_can_be_told():
    """The coordinator's verdict is a word of the trace."""
    verdict = {"outcome": "failed", "reason": "FailNow", "message": "rule 1 says so"}
    frames = simulate(LADDER, [{"at": 10, "pods": "RR"}, {"at": 20, "verdict": verdict}])

    assert _at(frames, 20).phase is Phase.FAILED
    assert _at(frames, 20).verdict.message == "rule 1 says so"


def test_incidents_and_steps_can_be_told():
    """What the coordinator tells is in the record, under ids of the current attempt."""
    told = {"node": 1, "local_rank": 0, "reason": "rank 1 exited with code 1"}
    frames = simulate(LADDER, [{"at": 10, "pods": "RR", "step": 40}, {"at": 20, "incidents": [told]}])

    (incident,) = _at(frames, 20).record.incidents
    assert (incident.id.attempt, incident.id.node, incident.cause) == (1, 1, Cause.PROCESS)


def test_the_policy_can_be_edited_in_mid_run():
    """An edit holds from its step on."""
    frames = simulate(
        APPWRAPPER, [{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RF(1)"}, {"at": 110, "policy": {"failure_grace": 20}}]
    )
    assert _at(frames, 110).wake_at == 120

    with pytest.raises(WireError, match=r"steps\[0\]\.policy\.grace: 20 is not allowed"):
        simulate(APPWRAPPER, [{"at": 1, "policy": {"grace": 20}}])


def test_a_job_without_a_supervisor_ages_little():
    """A gap that nobody watched counts as `max_gap`; one that was watched counts in full."""
    trace = [{"at": 10, "pods": "RR"}, {"at": 100, "pods": "PR"}, {"at": 390}]
    assert simulate(APPWRAPPER, trace)[-1].record.clock == 390
    away = simulate(APPWRAPPER, [*trace[:2], {"at": 390, "away": True}])

    assert away[-1].record.clock == 220
    assert away[-1].phase is Phase.RUNNING


def test_a_job_that_is_deleted_has_no_more_frames():
    """With its record the story ends, whatever the trace tells later."""
    frames = simulate(APPWRAPPER, [{"at": 10, "pods": "RR"}, {"at": 20, "delete": True}, {"at": 25, "gone": True}, {"at": 90}])

    assert (frames[-1].at, frames[-1].purged) == (25, True)


def test_a_week_takes_few_frames():
    """A long wait is passed over, and its end is met to the second."""
    frames = simulate(WRAPPED, {"removal": 5, "until": 700_000, "steps": [{"at": 10, "pods": "RR"}, {"at": 130, "pods": "SS"}]})

    assert [frame.at for frame in frames[-2:]] == [130 + 604_800, 130 + 604_805]
    assert frames[-1].record.released


def test_the_trace_may_say_who_makes_the_pods():
    """So that one policy can be tried on both machines."""
    frames = simulate(APPWRAPPER, {"makers": "components", "steps": [{"at": 5, "pods": "RR"}]})

    assert not any(isinstance(a, CreateNode) for frame in frames for a in frame.actions)
