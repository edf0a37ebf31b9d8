from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.simulation.simulator import simulate
from rallypoint.simulation.trace import CreateFailure, Makers, Pod, letters, read_trace
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.wire.codec import WireError
from rallypoint.wire.incident import FaultKind

_P, _R, _S, _F = NodeState.STARTING, NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.FAILED


def _pods(told):
    """Read the pods of a trace of one step."""
    return read_trace([{"at": 1, "pods": told}]).steps[0].pod_list


@pytest.mark.parametrize(
    ("told", "pods"),
    [
        pytest.param("", (), id="none at all"),
        pytest.param("PR", (Pod(state=_P), Pod(state=_R)), id="pending and running"),
        pytest.param("R, F + U", (Pod(state=_R), Pod(state=_F), Pod(state=NodeState.UNKNOWN)), id="gaps mean nothing"),
        pytest.param("S", (Pod(state=_S, exit_code=0, exit_codes=(0,)),), id="success has code 0"),
        pytest.param("F(3)", (Pod(state=_F, exit_code=3, exit_codes=(3,)),), id="a code"),
        pytest.param("F(0,7)", (Pod(state=_F, exit_code=7, exit_codes=(0, 7)),), id="codes of several containers"),
        pytest.param("F", (Pod(state=_F),), id="no container status"),
        pytest.param(
            "F(137 oom)", (Pod(state=_F, exit_code=137, exit_codes=(137,), kind=FaultKind.OOM),), id="a code and what it was"
        ),
        pytest.param("F(evicted)", (Pod(state=_F, kind=FaultKind.EVICTED),), id="what it was, and no code"),
        pytest.param("R*P*", (Pod(state=_R, deleting=True), Pod(state=_P, deleting=True)), id="being deleted"),
        pytest.param("R!*", (Pod(state=_R, deleting=True, flagged="flagged"),), id="flagged and being deleted"),
        pytest.param("GN", (Pod(state=_P, gated=True), Pod(state=_P, unschedulable=True)), id="gated, and without room"),
        pytest.param("L-=", (Pod(state=NodeState.LOST), None, Pod(state=None)), id="lost, none, as before"),
        pytest.param("Rx3F(1)x2", (Pod(state=_R),) * 3 + (Pod(state=_F, exit_code=1, exit_codes=(1,)),) * 2, id="repeated"),
        pytest.param(["RR", "P"], (Pod(state=_R), Pod(state=_R), Pod(state=_P)), id="a list of texts"),
        pytest.param(
            [{"state": "F", "exit_codes": [0, 9], "host": "h1", "node": 4, "incarnation": 2}],
            (Pod(state=_F, exit_code=9, exit_codes=(0, 9), host="h1", node=4, incarnation=2),),
            id="an object with a letter",
        ),
        pytest.param([{"state": "running", "flagged": "EVICT"}], (Pod(state=_R, flagged="EVICT"),), id="an object with a word"),
        pytest.param([{"state": "G"}], (Pod(state=_P, gated=True),), id="an object with a letter that says more"),
        pytest.param([{"state": "=", "node": 2}], (Pod(state=None, node=2),), id="an object that says as before"),
    ],
)
def test_pods_are_read(told, pods):
    """Each form of a pod says what it says in the document."""
    assert _pods(told) == pods


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        pytest.param(
            [{"at": 1, "pods": "RX"}],
            "steps\\[0\\]\\.pods: 'RX' is not allowed; expected pods such as",
            id="a letter",
        ),
        pytest.param(
            [{"at": 1, "pods": "F(boom)"}],
            "steps\\[0\\]\\.pods: 'boom' is not allowed; expected .* oom",
            id="what happened",
        ),
        pytest.param([{"at": 1, "pods": 7}], r"steps\[0\]\.pods: 7 is not allowed", id="a number"),
        pytest.param([{"at": 1, "pods": ["R", 7]}], r"steps\[0\]\.pods\[1\]: 7 is not allowed", id="a number in a list"),
        pytest.param([{"at": 1, "pods": [{"state": "Q"}]}], r"steps\[0\]\.pods\[0\]\.state: 'Q'", id="a state"),
        pytest.param([{"at": 1, "pods": [{"state": "R", "size": 3}]}], r"steps\[0\]\.pods\[0\]\.size: 3", id="a pod's field"),
        pytest.param(
            [{"at": 1, "podz": "R"}],
            "steps\\[0\\]\\.podz: 'R' is not allowed; expected only the keys at, note",
            id="a field",
        ),
        pytest.param([{"pods": "R"}], r"steps\[0\]\.at: None", id="no time"),
        pytest.param(
            [{"at": -1}],
            "steps\\[0\\]\\.at: -1\\.0 is not allowed; expected 0 or more",
            id="before the submission",
        ),
        pytest.param(
            [{"at": 5}, {"at": 4}],
            "steps\\[1\\]\\.at: 4\\.0 is not allowed; expected 5 or later",
            id="backwards",
        ),
        pytest.param([{"at": float("nan")}, {"at": 4}], r"steps\[0\]\.at: nan", id="no number"),
        pytest.param([{"at": 1, "gone": True, "pods": "R"}], r"steps\[0\]\.pods: 'R' .* 'gone: true'", id="gone, with pods"),
        pytest.param([{"at": 1, "component": "lost"}], r"steps\[0\]\.component: 'lost' .*missing", id="a component's word"),
        pytest.param(
            [{"at": 1, "components": {"x": 1}}], r"steps\[0\]\.components: 'x' .* keys deployed", id="a component's number"
        ),
        pytest.param([{"at": 1, "status": "well"}], r"steps\[0\]\.status: 'well'", id="a status"),
        pytest.param([{"at": 1, "coordinator": "RR"}], r"steps\[0\]\.coordinator: 'RR' .* one pod", id="two coordinators"),
        pytest.param([{"at": 1, "create_error": {"why": 1}}], r"steps\[0\]\.create_error\.why", id="an error's field"),
        pytest.param({"steps": [], "makers": "me"}, r"makers: 'me' .* supervisor, components", id="who makes pods"),
        pytest.param(
            {"steps": [], "components": 0},
            "components: 0 is not allowed; expected 1 or more",
            id="no component",
        ),
        pytest.param({"steps": [], "startup": -1.0}, r"startup: -1\.0 is not allowed", id="negative time"),
    ],
)
def test_a_wrong_trace_is_an_error_that_names_the_place(trace, message):
    """Whatever is wrong: the error tells where it stands, what stands there and what is allowed."""
    with pytest.raises(WireError, match=message):
        read_trace(trace)


def test_a_trace_is_an_object_or_a_list_of_steps():
    """The list alone is the trace whose other fields have their defaults."""
    assert read_trace([{"at": 3}]) == read_trace({"steps": [{"at": 3}]})
    assert read_trace({"steps": [], "makers": "components"}).makers is Makers.COMPONENTS


@pytest.mark.parametrize(
    ("told", "failure"),
    [
        pytest.param(None, None, id="not named"),
        pytest.param("", CreateFailure(reason=""), id="it works again"),
        pytest.param("no quota", CreateFailure(reason="no quota"), id="a reason"),
        pytest.param(
            {"reason": "bad image", "fatal": True, "nodes": [1]},
            CreateFailure(reason="bad image", fatal=True, nodes=(1,)),
            id="fatal, of one node",
        ),
    ],
)
def test_failing_creations_are_read(told, failure):
    """A creation fails with a reason until an empty one ends it."""
    assert read_trace([{"at": 0, "create_error": told}]).steps[0].failure == failure


@pytest.mark.parametrize(
    "told",
    [
        pytest.param("", id="none"),
        pytest.param("PRSF(3)", id="plain"),
        pytest.param("R*GNU", id="marked"),
        pytest.param("R!F(0 7)F(137 oom)L", id="ended"),
        pytest.param("F(evicted)F", id="without codes"),
    ],
)
def test_pods_are_written_as_they_are_read(told):
    """What is seen is told in the letters of the trace."""
    frames = simulate(Policy(min_nodes=1, max_nodes=8, wrapped=True), [{"at": 1, "pods": told}])

    assert letters(frames[-1].seen.nodes) == told


@given(st.text(alphabet="PGNRSFUL=-*!(),+x 0123oom", max_size=12))
def test_any_text_is_read_or_refused(text):
    """No text of pods makes the reader fail in another way, or loop."""
    pods: tuple[object, ...] = ()
    with contextlib.suppress(WireError):
        pods = _pods(text)

    assert all(pod is None or isinstance(pod, Pod) for pod in pods)
