"""`rallypoint resize`, and roles that a command cannot select."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Kind
from tests.cli.samples import HOLDER, begun, training

# --- resize ----------------------------------------------------------------------------------------------------------------


def test_a_job_is_resized(run, place, capsys):
    """The wish is in the record; what is so already is said and changes nothing."""
    place.put(dataclasses.replace(begun(), holder=HOLDER), training()).beat(HOLDER)

    assert [run("resize", "digits", "1:4") for _ in range(2)] == [0, 0]

    assert place.world.record("digits").size == Size(min_nodes=1, max_nodes=4)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Job digits is being resized from ")
    assert told[0].endswith(" to 1:4 nodes")
    assert told[1:] == ["Job digits already has 1:4 nodes; nothing was changed"]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        pytest.param(
            "many", "nodes: 'many' is not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX <= 16384", id="no number"
        ),
        pytest.param("1:2:3", "nodes: '1:2:3' is not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX <= 16384", id="three"),
        pytest.param("4:2", "nodes: '4:2' is not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX <= 16384", id="order"),
    ],
)
def test_a_size_that_no_job_can_have_is_an_error(run, place, capsys, nodes, says):
    """In one line."""
    place.put(begun())

    assert run("resize", "digits", nodes) == 1
    assert capsys.readouterr().err == f"rallypoint: {says}\n"


@pytest.mark.parametrize("kind", [Kind.RAYCLUSTER, Kind.APPWRAPPER])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("logs", "digits"), "--role rollout is not allowed for job digits, which has kind {kind}; omit --role"),
        (
            ("resize", "digits", "2"),
            "job digits: role 'rollout' cannot be resized, because the job has kind {kind}; expected kind pods",
        ),
    ],
    ids=["logs", "resize"],
)
def test_a_role_within_an_object_of_another_controller_cannot_be_selected(run, place, capsys, kind, words, complaint):
    """The error does not claim that the job has one role."""
    place.put(begun())
    held = place.world.jobs["digits"]
    held.blueprint = dataclasses.replace(held.blueprint, plan=dataclasses.replace(held.blueprint.plan, kind=kind))

    assert run(*words, "--role", "rollout") == 1
    assert capsys.readouterr().err == f"rallypoint: {complaint.format(kind=kind.value)}\n"
