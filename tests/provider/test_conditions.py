from __future__ import annotations

import dataclasses
import json
import math

import pytest

from rallypoint.provider.errors import OptionError
from rallypoint.provider.sensing.conditions import (
    CONDITIONS,
    ENDED,
    LEVELS,
    PHASES,
    HangCondition,
    ProgressCondition,
    RendezvousCondition,
    StateCondition,
)
from rallypoint.provider.sensing.evaluation import judge
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.observation import Memory, Seen
from rallypoint.provider.sensing.watching import read_condition
from rallypoint.supervision.record import ConditionType, Phase, Slot
from rallypoint.wire.codec import WireError
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Answer, Cause, Rung
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobState, Progress
from tests.provider.records import failed, incident, record, status, succeeded


def look(condition, job, told=None, *, memory=None, now=0.0, max_nodes=2) -> tuple[Finding, Memory]:
    """One look at a job."""
    return judge(condition, "digits", Seen(record=job, status=told, max_nodes=max_nodes, now=now), memory or Memory())


def looks(condition, *sights, every=10.0) -> list[Found]:
    """What each of some looks finds that are `every` seconds apart."""
    memory, found = Memory(), []
    for number, (job, told) in enumerate(sights):
        finding, memory = look(condition, job, told, memory=memory, now=number * every)
        found.append(finding.found)
    return found


W, M, X = Found.WAITING, Found.MET, Found.IMPOSSIBLE


# --- Any condition


def test_a_job_that_is_not_there_yet_is_waited_for_and_one_that_is_gone_is_not():
    """A sensor may start before the job does; a deletion ends it with a word."""
    condition = StateCondition(phase="Succeeded")

    assert looks(condition, (None, None), (record(), None), (None, None)) == [W, W, X]
    finding, _ = look(condition, None, memory=Memory(uid="uid-1"))
    assert finding.text == "job digits was deleted"


def test_a_job_that_was_submitted_anew_is_another_one():
    """Nothing that was counted of the first counts for the second."""
    condition = RendezvousCondition(min_nodes=2, stable_for=15)
    again = dataclasses.replace(record(), uid="uid-2")

    assert looks(
        condition, (record(), status(0, 1)), (again, status(0, 1, uid="uid-2")), (again, status(0, 1, uid="uid-2"))
    ) == [
        W,
        W,
        W,
    ]


def test_time_in_which_nobody_looked_counts_no_more_than_the_gap():
    """A laptop that slept has not seen its job stand still, and a clock that was set back takes nothing away."""
    seen = Seen(record=record(), gap=120)
    memory = Memory().marked("still", seen)

    memory = memory.marked("still", dataclasses.replace(seen, now=36000))
    assert memory.spent == 120
    memory = memory.marked("still", dataclasses.replace(seen, now=500))
    assert memory.spent == 120
    assert memory.marked("moved", dataclasses.replace(seen, now=501)).spent == 0


def test_the_words_are_those_of_records_and_statuses():
    """Conditions name them without importing them."""
    assert set(CONDITIONS) == {each.value for each in ConditionType}
    assert set(LEVELS) == {each.value for each in HangState}
    assert set(PHASES) == {each.value for each in Phase} - {"", "Terminating"} | {ENDED}


@pytest.mark.parametrize(
    "condition",
    [
        StateCondition(phase="Failed"),
        StateCondition(condition="Unhealthy", value=False, stable_for=3),
        RendezvousCondition(min_nodes=2, min_world_size=4, stable_for=1.5),
        RendezvousCondition(missing_for=60),
        ProgressCondition(metric="loss", below=-1),
        HangCondition(level="doubt", evidence=True),
    ],
    ids=str,
)
def test_a_condition_travels_as_json(condition):
    """It is stored with a deferred task."""
    assert read_condition(json.loads(json.dumps(condition.words()))) == condition


@pytest.mark.parametrize(
    "words", [{}, {"kind": "weather"}, {"kind": "state", "phase": "Running", "mood": "good"}], ids=["none", "unknown", "more"]
)
def test_what_is_no_condition_is_refused(words):
    """The path, the value and what is allowed."""
    with pytest.raises(
        WireError,
        match=r"condition.* is not allowed; expected ",
    ):
        read_condition(words)


def test_a_finding_travels_as_json():
    """The values reach XCom through the event."""
    finding, _ = look(RendezvousCondition(min_nodes=2), record(), status(0, 1))

    assert Finding.from_event(json.loads(json.dumps(finding.to_event()))) == finding
    assert finding.values == {"job": "digits", "uid": "uid-1", "phase": "Running", "round": 1, "nodes": 2, "world_size": 4}


def test_a_memory_travels_as_json():
    """A sensor that is rescheduled keeps it in the task's state store."""
    memory = Memory(uid="u", mark="m", spent=3, at=17.5)

    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory


# --- Phases and conditions


@pytest.mark.parametrize(
    ("phase", "job", "found"),
    [
        pytest.param("Succeeded", record(), W, id="still running"),
        pytest.param("Succeeded", succeeded(), M, id="succeeded"),
        pytest.param("Succeeded", failed(), X, id="failed instead"),
        pytest.param("Ended", failed(), M, id="either end will do"),
        pytest.param("Failed", succeeded(), X, id="succeeded instead"),
        pytest.param("Running", record(Phase.EMPTY), W, id="not yet running"),
        pytest.param("Running", record(), M, id="running"),
        pytest.param("Running", succeeded(), M, id="ran already"),
        pytest.param("Running", failed(), X, id="will not run any more"),
        pytest.param("Suspended", record(Phase.SUSPENDED), M, id="suspended"),
        pytest.param("Ended", record(Phase.TERMINATING), X, id="being deleted"),
    ],
)
def test_a_phase_is_waited_for_until_it_cannot_come(phase, job, found):
    """A sensor neither waits for ever nor gives up early."""
    assert look(StateCondition(phase=phase), job)[0].found is found


def test_a_condition_has_to_have_its_value_for_as_long_as_is_asked():
    """A moment of health is not health, and one that was never set has no value."""
    well = record().with_condition(ConditionType.UNHEALTHY, "AllWell", value=False)
    ill = record().unhealthy("NodesLost")
    condition = StateCondition(condition="Unhealthy", value=False, stable_for=15)

    assert looks(condition, *((job, None) for job in (record(), well, ill, well, well, well))) == [W, W, W, W, W, M]
    finding, _ = look(StateCondition(condition="Unhealthy"), ill)
    assert finding.text == "job digits is Running, Unhealthy=True (NodesLost)"


# --- Rendezvous


@pytest.mark.parametrize(
    ("told", "found"),
    [
        pytest.param(None, W, id="nothing said yet"),
        pytest.param(status(0, 1, state=JobState.FORMING), W, id="between two rounds"),
        pytest.param(status(0), W, id="too few nodes"),
        pytest.param(status(0, 1), M, id="enough nodes"),
        pytest.param(status(0, 1, attempt=9), W, id="another attempt"),
        pytest.param(status(0, 1, uid="other"), W, id="another job of that name"),
    ],
)
def test_a_rendezvous_counts_the_nodes_that_train(told, found):
    """Only a running round of the present attempt counts."""
    assert look(RendezvousCondition(min_nodes=2), record(), told)[0].found is found


def test_a_world_may_be_counted_in_ranks():
    """Two nodes of two ranks are a world of four."""
    assert look(RendezvousCondition(min_world_size=4), record(), status(0, 1))[0].found is M
    assert look(RendezvousCondition(min_world_size=5), record(), status(0, 1))[0].found is W


def test_a_world_is_stable_that_stays_the_same():
    """Another round of as many nodes begins the count anew."""
    first, second = status(0, 1), dataclasses.replace(status(0, 1), fence=dataclasses.replace(status(0).fence, round=2))
    condition = RendezvousCondition(min_nodes=2, stable_for=15)

    assert looks(condition, *((record(), told) for told in (first, first, second, second, second))) == [W, W, W, W, M]
    finding, _ = look(condition, record(), first)
    assert (finding.found, finding.wake) == (W, 15)


def test_no_rendezvous_comes_after_the_end():
    """The reason of the failure is in the text."""
    finding, _ = look(RendezvousCondition(min_nodes=2), failed())

    assert finding.found is X
    assert "rank 3 on node 1" in finding.text


def test_members_are_missing_after_they_have_been_for_long_enough():
    """Whoever was never there is not missing, a round that is whole again forgets it, and who is missing is named."""
    job = record(slots=(Slot(node=0), Slot(node=1)))
    whole, short = status(0, 1), status(0)
    forming = dataclasses.replace(whole, state=JobState.FORMING)
    first = dataclasses.replace(status(state=JobState.FORMING), fence=dataclasses.replace(whole.fence, round=0))
    condition = RendezvousCondition(missing_for=20)

    assert looks(condition, *((job, told) for told in (first, first, first, first))) == [W, W, W, W]
    assert looks(condition, *((job, told) for told in (whole, short, forming, whole, short, short, short))) == [
        W,
        W,
        W,
        W,
        W,
        W,
        M,
    ]
    finding, _ = look(condition, job, short, memory=Memory(uid="uid-1", mark="short", spent=30))
    assert finding.values["missing"] == [1]
    assert finding.text.endswith("missing: node 1")


# --- Progress


@pytest.mark.parametrize(
    ("condition", "step", "metrics", "found"),
    [
        pytest.param({"min_step": 150}, 150, {}, M, id="the step itself"),
        pytest.param({"min_step": 151}, 150, {}, W, id="a step below"),
        pytest.param({"min_step": 1}, None, {}, W, id="no step"),
        pytest.param({"metric": "loss", "below": 0.5}, 1, {"loss": 0.5}, M, id="below"),
        pytest.param({"metric": "loss", "below": 0.5}, 1, {"loss": 0.51}, W, id="not below"),
        pytest.param({"metric": "loss", "above": 0.0}, 1, {"loss": 0.0}, M, id="above zero"),
        pytest.param({"metric": "loss", "above": 0.5}, 1, {"loss": math.nan}, W, id="not a number"),
        pytest.param({"metric": "loss", "below": 0.5}, 1, {"loss": math.nan}, W, id="not a number either"),
        pytest.param({"metric": "loss", "below": 0.5}, 1, {"accuracy": 0.1}, W, id="another metric"),
    ],
)
def test_progress_is_what_the_script_reported_last(condition, step, metrics, found):
    """A step, or a metric on one side of a value."""
    told = dataclasses.replace(status(0, 1), progress=Progress(step=step, metrics=metrics))

    assert look(ProgressCondition(**condition), record(), told)[0].found is found


def test_progress_that_was_made_counts_after_the_end_and_other_does_not_come():
    """Who looks late finds it in the record."""
    assert look(ProgressCondition(min_step=300), succeeded())[0].found is M
    finding, _ = look(ProgressCondition(min_step=301), succeeded())
    assert (finding.found, finding.text) == (X, "job digits is Succeeded, so step 301 is no longer possible")
    finding, _ = look(ProgressCondition(metric="f1", above=1), succeeded())
    assert finding.text == "job digits is Succeeded, so f1 above 1 (the metric was not reported) is no longer possible"


def test_a_standstill_is_no_step_above_the_highest_one():
    """Training the same steps again after a restart is none; between two attempts nothing is counted."""
    condition = ProgressCondition(no_progress_for=25)

    def at(step, state=JobState.RUNNING):
        return record(), status(0, 1, step=step, state=state)

    resetting = record(Phase.RESETTING, progress=Progress(step=7)), None
    assert looks(condition, at(5), at(6), at(7), at(7), at(7), at(7)) == [W, W, W, W, W, M]
    assert looks(condition, at(7), at(3), at(5), at(7)) == [W, W, W, M]
    assert looks(condition, at(7), at(3), at(5), at(8), at(8)) == [W, W, W, W, W]
    assert looks(condition, at(7), resetting, resetting, resetting, at(5), at(6), at(7)) == [W, W, W, W, W, W, M]
    assert looks(condition, at(None), at(None), at(None), at(None)) == [W, W, W, W]
    assert look(condition, succeeded())[0].found is X


# --- Hangs


def hang(state: HangState, *culprits: int) -> Hang:
    return Hang(round=1, state=state, quiet_since=90.0, since=95.0, culprits=culprits, reason="no rank has moved for 5m")


@pytest.mark.parametrize(
    ("level", "told", "incidents", "found"),
    [
        pytest.param("verdict", None, (), W, id="all is well"),
        pytest.param("verdict", hang(HangState.DOUBT), (), W, id="a doubt is no verdict"),
        pytest.param("doubt", hang(HangState.DOUBT), (), M, id="a doubt"),
        pytest.param("doubt", hang(HangState.VERDICT), (), M, id="a verdict is a doubt, too"),
        pytest.param("verdict", hang(HangState.VERDICT), (), M, id="a verdict"),
        pytest.param("verdict", None, (incident(cause=Cause.HANG),), M, id="one that was healed"),
        pytest.param("verdict", None, (incident(cause=Cause.HANG, rung=Rung.NOTIFY),), W, id="a notification is no verdict"),
        pytest.param("doubt", None, (incident(cause=Cause.HANG, rung=Rung.NOTIFY),), M, id="a notification is a doubt"),
        pytest.param(
            "verdict",
            None,
            (dataclasses.replace(incident(cause=Cause.HANG, rung=Rung.NOTIFY), answer=Answer.RETRY_HERE),),
            M,
            id="a verdict that restarts nothing",
        ),
        pytest.param("verdict", None, (incident(),), W, id="another fault"),
    ],
)
def test_a_hang_is_doubted_or_judged(level, told, incidents, found):
    """What stands now, and what has happened in this run."""
    job = record(incidents=incidents)

    assert look(HangCondition(level=level), job, replaced(status(0, 1), hang=told))[0].found is found


def test_a_hang_of_an_earlier_run_is_not_this_ones():
    """A task that was cleared begins its next attempt with another owner."""
    job = record(incidents=(incident(cause=Cause.HANG),))
    again = dataclasses.replace(job, attempt=2, owner="try-2")

    assert look(HangCondition(), again)[0].found is W


def test_the_evidence_of_a_hang_is_told():
    """Who the others wait for, and everything that was kept of it."""
    job = record(incidents=(incident(cause=Cause.HANG),))
    finding, _ = look(HangCondition(evidence=True), job, replaced(status(0, 1), hang=hang(HangState.VERDICT, 3, 1)))

    assert finding.text == "job digits: a hang: no rank has moved for 5m"
    assert (finding.values["hang"], finding.values["culprits"]) == ("verdict", [3, 1])
    assert finding.values["evidence"]["incidents"][0]["culprit"]["log_tail"] == ["line 1", "line 2"]
    assert json.loads(json.dumps(finding.to_event()))["values"]["evidence"]["hang"]["state"] == "verdict"


# --- Wrong arguments


@pytest.mark.parametrize(
    ("condition", "arguments", "says"),
    [
        pytest.param(
            StateCondition,
            {"phase": "Flying"},
            "phase: 'Flying' is not allowed; expected one of",
            id="phase",
        ),
        pytest.param(StateCondition, {}, "phase: '' is not allowed", id="nothing"),
        pytest.param(StateCondition, {"phase": "Running", "condition": "Unhealthy"}, "or no value if condition", id="both"),
        pytest.param(
            StateCondition,
            {"condition": "Happy"},
            "condition: 'Happy' is not allowed; expected one of",
            id="condition",
        ),
        pytest.param(StateCondition, {"phase": "Failed", "stable_for": -1}, "stable_for: -1 is not allowed", id="seconds"),
        pytest.param(RendezvousCondition, {"min_nodes": -1}, "min_nodes: -1 is not allowed", id="nodes"),
        pytest.param(RendezvousCondition, {"min_nodes": True}, "min_nodes: True is not allowed", id="a truth"),
        pytest.param(RendezvousCondition, {"stable_for": math.inf}, "stable_for: inf is not allowed", id="for ever"),
        pytest.param(RendezvousCondition, {"stable_for": 1, "missing_for": 1}, "stable_for: 1 is not", id="two times"),
        pytest.param(
            ProgressCondition, {}, "exactly one of the arguments min_step, metric and no_progress_for", id="no progress"
        ),
        pytest.param(ProgressCondition, {"min_step": 1, "metric": "loss"}, "exactly one of", id="two kinds"),
        pytest.param(
            ProgressCondition,
            {"min_step": 1.5},
            "min_step: 1.5 is not allowed; expected a whole",
            id="half a step",
        ),
        pytest.param(ProgressCondition, {"metric": "loss"}, "above: None is not allowed", id="no side"),
        pytest.param(ProgressCondition, {"metric": "loss", "above": 1, "below": 2}, "for exactly one of", id="two sides"),
        pytest.param(ProgressCondition, {"metric": "loss", "above": "1"}, "above: '1' is not allowed", id="a text"),
        pytest.param(
            ProgressCondition,
            {"min_step": 1, "below": 1},
            "below: 1 is not allowed; expected no value",
            id="a stray side",
        ),
        pytest.param(ProgressCondition, {"no_progress_for": -3}, "no_progress_for: -3 is not allowed", id="negative"),
        pytest.param(
            HangCondition,
            {"level": "panic"},
            "level: 'panic' is not allowed; expected one of",
            id="level",
        ),
    ],
)
def test_a_condition_is_one_clear_thing(condition, arguments, says):
    """An error names the field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        condition(**arguments)
