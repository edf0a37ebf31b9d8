"""How an incident ended, in the words of every output."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.report.incidents import done, recovered_text
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung

FAULT = Incident(
    id=IncidentId(attempt=1, round=1, node=0, local_rank=0),
    cause=Cause.PROCESS,
    rung=Rung.RESTART_WORKERS,
    reason="rank 0 was ended by signal 9",
    detected_at=100.0,
)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        pytest.param({}, "training did not resume", id="still open"),
        pytest.param({"healed_at": 100.59}, "workers restarted after 0.59 s", id="no step is known"),
        pytest.param(
            {"healed_at": 100.59, "trained_at": 172.0}, "training resumed after 1m 12s", id="the optimizer hook counts"
        ),
        pytest.param({"healed_at": 104.0, "resumed_step": 3}, "training resumed after 4.0 s", id="told by an older version"),
        pytest.param({"healed_at": 100.5, "cause": Cause.COORDINATOR}, "replaced after 0.50 s", id="a coordinator"),
        pytest.param({"healed_at": 130.0, "rung": Rung.NOTIFY}, "over after 30 s", id="only reported"),
        pytest.param({"cause": Cause.SCALE}, "", id="nothing broke"),
        pytest.param({"healed_at": 90.0}, "workers restarted after 0.00 s", id="a clock that went back"),
    ],
)
def test_words_claim_no_more_than_is_known(known: dict[str, Any], text: str) -> None:
    """Trained again is said of steps alone."""
    incident = dataclasses.replace(FAULT, **known)
    assert recovered_text(incident) == text
    assert text in done(incident)
