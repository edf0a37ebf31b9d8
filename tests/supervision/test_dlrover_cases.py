"""DLRover's cases of pending nodes and of exits, in our own words: the same pods, the same verdict.

Source of the figures: `dlrover/python/tests/test_worker_manager.py` and `test_k8s_watcher.py` of
intelligent-machine-learning/dlrover at 7c3e9648 (August 2026). Its code treats strategy 2 of PyTorch jobs like 1; its
documentation and Rallypoint let any pending node fail the job.
"""

from __future__ import annotations

import pytest

from rallypoint.simulation.simulator import simulate
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.supervision.verdicts import classify, node_end
from rallypoint.wire.incident import FaultKind

TIMEOUT = 600.0


@pytest.mark.parametrize(
    ("strategy", "pods", "until", "fails"),
    [
        pytest.param(1, "RRRN", 60.0, False, id="three of at least four run, one is pending for a minute"),
        pytest.param(1, "RRRN", 1200.0, True, id="the same for twenty minutes"),
        pytest.param(2, "RRRN", 1200.0, True, id="the same with strategy 2"),
        pytest.param(1, "RRRRN", 1200.0, False, id="four run: that is enough"),
        pytest.param(1, "RRRR", 1200.0, False, id="all run"),
        pytest.param(1, "NNNN", 60.0, False, id="all are pending for a minute"),
        pytest.param(1, "NNNN", 1200.0, True, id="all are pending for twenty"),
        pytest.param(0, "RRRN", 1200.0, False, id="strategy 0 judges nobody"),
    ],
)
def test_pending_nodes(strategy: int, pods: str, until: float, fails: bool) -> None:
    """Fewer nodes than the fewest run while others are pending, for the whole time-out: then the job has failed."""
    policy = Policy(
        min_nodes=4,
        max_nodes=len(pods),
        pending_timeout=TIMEOUT,
        pending_fail_strategy=strategy,
        warmup_grace=1e6,
        retry_limit=0,
    )
    steps = [{"at": 1, "pods": pods, "status": "auto"}]
    frames = simulate(policy, {"makers": "supervisor", "until": until, "steps": steps})

    assert (frames[-1].phase is Phase.FAILED) == fails
    if fails:
        assert frames[-1].verdict is not None
        assert frames[-1].verdict.reason == "PendingTimeout"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        pytest.param(247, FaultKind.OOM, id="247"),
        pytest.param(137, FaultKind.SIGNAL, id="137"),
        pytest.param(143, FaultKind.SIGNAL, id="143"),
        pytest.param(134, FaultKind.SIGNAL, id="134"),
        pytest.param(1, FaultKind.EXIT_CODE, id="1"),
        pytest.param(201, FaultKind.HARDWARE, id="201"),
        pytest.param(202, FaultKind.HARDWARE, id="202"),
        pytest.param(14, FaultKind.HARDWARE, id="14"),
        pytest.param(999, FaultKind.EXIT_CODE, id="a code that means nothing"),
    ],
)
def test_exits(code: int, kind: FaultKind) -> None:
    """The end of a container is of the same class; `OOMKilled` is in tests/kube/test_backend_nodes.py."""
    seen = NodeSeen(attempt=1, node=0, incarnation=1, state=NodeState.FAILED, present=False, exit_code=code)

    assert classify(node_end(seen, agent=False)) is kind
