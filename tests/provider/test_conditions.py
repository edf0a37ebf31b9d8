from __future__ import annotations

import json

import pytest

from rallypoint.provider.conditions import Condition, Finding, Found, judge
from rallypoint.provider.errors import OptionError
from rallypoint.supervision.record import Phase
from rallypoint.wire.status import JobState
from tests.provider.records import failed, record, status, succeeded


@pytest.mark.parametrize(
    ("phase", "job", "found"),
    [
        pytest.param("Succeeded", record(), Found.WAITING, id="still running"),
        pytest.param("Succeeded", succeeded(), Found.MET, id="succeeded"),
        pytest.param("Succeeded", failed(), Found.IMPOSSIBLE, id="failed instead"),
        pytest.param("Ended", failed(), Found.MET, id="either end will do"),
        pytest.param("Failed", succeeded(), Found.IMPOSSIBLE, id="succeeded instead"),
        pytest.param("Running", record(Phase.EMPTY), Found.WAITING, id="not yet running"),
        pytest.param("Running", record(), Found.MET, id="running"),
        pytest.param("Running", succeeded(), Found.MET, id="ran already"),
        pytest.param("Running", failed(), Found.IMPOSSIBLE, id="will not run any more"),
        pytest.param("Ended", record(Phase.TERMINATING), Found.IMPOSSIBLE, id="being deleted"),
    ],
)
def test_a_phase_is_waited_for_until_it_cannot_come(phase, job, found):
    """A sensor neither waits for ever nor gives up early."""
    assert judge(Condition(phase=phase), job, None).found is found


@pytest.mark.parametrize(
    ("look", "found"),
    [
        pytest.param(None, Found.WAITING, id="nothing said yet"),
        pytest.param(status(0, 1, state=JobState.FORMING), Found.WAITING, id="between two rounds"),
        pytest.param(status(0), Found.WAITING, id="too few nodes"),
        pytest.param(status(0, 1), Found.MET, id="enough nodes"),
        pytest.param(status(0, 1, attempt=9), Found.WAITING, id="another attempt"),
        pytest.param(status(0, 1, uid="other"), Found.WAITING, id="another job of that name"),
    ],
)
def test_a_rendezvous_counts_the_nodes_that_train(look, found):
    """Only a running round of the present attempt counts."""
    assert judge(Condition(min_nodes=2), record(), look).found is found


def test_no_rendezvous_comes_after_the_end():
    """The reason of the failure is in the text."""
    finding = judge(Condition(min_nodes=2), failed(), None)

    assert finding.found is Found.IMPOSSIBLE
    assert "rank 3 on node 1" in finding.text


def test_a_finding_travels_as_json():
    """The values reach XCom through the event."""
    finding = judge(Condition(min_nodes=2), record(), status(0, 1))

    assert Finding.from_event(json.loads(json.dumps(finding.to_event()))) == finding
    assert finding.values == {"job": "digits", "uid": "uid-1", "phase": "Running", "round": 1, "nodes": 2, "world_size": 4}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"phase": "Flying"}, id="an unknown phase"),
        pytest.param({}, id="nothing"),
        pytest.param({"phase": "Running", "min_nodes": 1}, id="both"),
    ],
)
def test_a_condition_is_one_thing(arguments):
    """What is asked for is clear, or an error that says what is allowed."""
    with pytest.raises(OptionError, match="is not allowed; expected"):
        Condition(**arguments)
