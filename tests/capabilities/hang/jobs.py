"""Jobs of two nodes with hang detection, as their coordinator has them."""

from __future__ import annotations

from typing import Any

from rallypoint.agent.rendezvous import capabilities
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.capabilities.hang.coordinator import HangDetection
from rallypoint.capabilities.hang.state import HangSettings
from tests.agent.test_rendezvous import TWO, training

__all__ = ["own", "pace", "watched"]


def watched(hang: HangSettings, settings: Settings = TWO) -> State:
    """Return a job whose first round runs."""
    return training(settings, registered=(HangDetection(hang),))


def own(state: State) -> Any:
    """Return the state of hang detection; a test that expects a hang reads it without a check for None."""
    return state.capabilities.state_of("hang")


def pace(state: State) -> float:
    """Return the period that it needs between reports."""
    return capabilities.report_period(state)
