from __future__ import annotations

import dataclasses

import pytest

from rallypoint.simulation.simulator import simulate
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.wire.plan import Profile

LADDER = Policy(min_nodes=2, max_nodes=2, node_replacements=0)
APPWRAPPER = dataclasses.replace(LADDER, profile=Profile.APPWRAPPER)
WRAPPED = dataclasses.replace(APPWRAPPER, wrapped=True)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(LADDER, id="ladder"),
        pytest.param(APPWRAPPER, id="appwrapper"),
        pytest.param(WRAPPED, id="wrapped components"),
    ],
)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([{"at": 5, "pods": "PP"}], id="warming up"),
        pytest.param([{"at": 10, "pods": "RR"}], id="training"),
        pytest.param([{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RF(1)"}], id="failing"),
        pytest.param([{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RF(1)"}, {"at": 170}], id="being deleted"),
        pytest.param([{"at": 10, "pods": "RR"}, {"at": 100, "pods": "RF(1)"}, {"at": 170, "gone": True}], id="pausing"),
        pytest.param([{"at": 0, "suspend": True}], id="suspended"),
        pytest.param([{"at": 0, "quota": False}], id="without quota"),
    ],
)
def test_a_record_alone_tells_the_clocks_that_run(policy, steps):
    """What the record remembers leads to the same phase and the same clocks as what was seen."""
    frame = simulate(policy, steps)[-1]

    decision = reconcile(frame.record, remembered(frame.record, policy), policy, frame.at)

    assert decision.record.phase is frame.phase
    assert [(d.clock, d.at) for d in decision.deadlines] == [(d.clock, d.at) for d in frame.deadlines]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_one_pod_of_wrapped_components_has_failed(nodes):
    """The record says that pods failed, and not which: it is the first one, also where there is no other."""
    policy = dataclasses.replace(WRAPPED, min_nodes=nodes, max_nodes=nodes)
    frame = simulate(policy, [{"at": 10, "pods": "R" * nodes}, {"at": 100, "pods": "R" * (nodes - 1) + "F(1)"}])[-1]

    seen = remembered(frame.record, policy)

    assert [node.state is NodeState.FAILED for node in seen.nodes] == [True, *[False] * (nodes - 1)]
