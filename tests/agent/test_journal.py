"""What the coordinator keeps of its incidents when they are many."""

from __future__ import annotations

import pytest

from rallypoint.agent.rendezvous import journal
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from tests.agent.fakes import TWO, new_state

#: Seconds that each fault cost, and many faults.
TOOK, MANY = 1.23456, 300


def fault(number: int) -> Incident:
    """A killed worker, with as much text as is kept; training went on `TOOK` seconds later."""
    text = "loss is nan " * 40
    at = 10.0 * number
    return Incident(
        id=IncidentId(attempt=1, round=number, node=0, local_rank=0),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason=text,
        culprit=Culprit(node=0, host="host-0", rank=0, local_rank=0, signal=9, error=text, log_tail=(text,) * 20, at=at),
        detected_at=at,
        healed_at=at + TOOK,
    )


def test_incidents_that_become_counts_keep_their_lost_seconds() -> None:
    """The time is that of all of them, in whole milliseconds."""
    state = new_state(TWO, now=0.0)
    for number in range(1, MANY + 1):
        state = journal.incident(state, fault(number))

    gone = MANY - len(state.incidents)
    assert gone > 0
    assert sum(count.count for count in state.folded) == gone
    seconds = state.lost[Cause.PROCESS.value]
    assert seconds == round(seconds, 3)
    assert seconds == pytest.approx(gone * TOOK, abs=0.001 * gone)
