"""Of several workers that ended badly, which one broke first."""

from __future__ import annotations

import pytest

from rallypoint.agent.culprit import TAILS, culprit_first, is_collateral, with_few_tails
from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.agent.workers.facts import TAIL_BYTES, tail_lines
from rallypoint.wire import codec
from rallypoint.wire.incident import Culprit
from tests.agent.fakes import report

KILLED = Culprit(rank=0, signal=9, at=5.0)
RAISED = Culprit(rank=1, exit_code=1, error="ValueError: loss is nan", at=4.0)
LATER = Culprit(rank=2, exit_code=1, error="KeyError: 'x'", at=6.0)
LOST_PEER = Culprit(rank=3, exit_code=1, error="RuntimeError: Connection closed by peer [10.0.0.1]:7", at=1.0)


def test_the_order_of_blame() -> None:
    """A signal, then an error of its own, the earlier first, then who lost a peer, however early."""
    assert culprit_first([LOST_PEER, LATER, RAISED, KILLED]) == (KILLED, RAISED, LATER, LOST_PEER)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [1.2.3.4]:5: Connection reset by peer.", id="gloo"
        ),
        pytest.param("torch.distributed.DistBackendError: NCCL error in: x.cpp:1", id="nccl"),
        pytest.param("BrokenPipeError: [Errno 32] Broken pipe", id="pipe"),
        pytest.param("torch.distributed.DistNetworkError: Failed to recv", id="store"),
    ],
)
def test_a_lost_peer_is_not_the_cause(error: str) -> None:
    """What a healthy rank says when another vanished."""
    assert is_collateral(Culprit(exit_code=1, error=error))
    assert not is_collateral(Culprit(signal=9, error=error))


def test_a_report_of_many_failures_fits_into_a_message() -> None:
    """All are told, the first with their logs: a report that is too large would be sent for ever and never be read."""
    failures = tuple(
        Culprit(rank=i, exit_code=1, error="\x1b" * 500, log_tail=tail_lines(["\x1b" * TAIL_BYTES], 20)) for i in range(128)
    )
    told = with_few_tails(failures)

    assert [failure.rank for failure in told] == list(range(128))
    assert [bool(failure.log_tail) for failure in told] == [i < TAILS for i in range(128)]
    assert len(codec.dumps(report(failures=failures)).encode()) > BODY_LIMIT
    assert len(codec.dumps(report(failures=told)).encode()) < BODY_LIMIT / 2
