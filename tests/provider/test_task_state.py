"""What Airflow's answer says of a task that somebody may have ended."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.provider.task_state import find_state, may_cancel
from tests.provider.tasks import FakeTask


@pytest.mark.parametrize(
    ("states", "state", "ended"),
    [
        pytest.param({"manual__1": {"train": "failed"}}, "failed", True, id="marked failed"),
        pytest.param({"manual__1": {"train": "deferred"}}, "deferred", False, id="another has its trigger"),
        pytest.param({"manual__1": {"train": None}}, None, False, id="cleared, and not scheduled yet"),
        pytest.param({"manual__1": {}}, "removed", True, id="its row is gone"),
        pytest.param({}, "removed", True, id="its DAG run was deleted"),
    ],
)
def test_a_job_goes_on_unless_its_task_was_ended(states: dict[str, Any], state: str | None, ended: bool) -> None:
    """A task that is gone is an ended one; a task that has no state yet is not."""
    assert find_state(states, FakeTask(run_id="manual__1", task_id="train")) == state
    assert may_cancel(state) is ended


def test_a_mapped_task_is_asked_by_its_index() -> None:
    """Its siblings end without it."""
    states = {"manual__1": {"train_0": "failed", "train_1": "running"}}

    assert find_state(states, FakeTask(run_id="manual__1", task_id="train", map_index=1)) == "running"
    assert find_state(states, FakeTask(run_id="manual__1", task_id="train", map_index=2)) == "removed"
