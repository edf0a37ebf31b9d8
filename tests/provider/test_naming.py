from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.provider.naming import NAME_LIMIT, default_name

KEY: dict[str, Any] = {"dag_id": "nightly", "run_id": "scheduled__2026-01-01", "task_id": "train", "map_index": -1}


def test_every_try_of_a_task_means_the_same_job():
    """The name is a function of the task instance's key and of nothing else."""
    assert default_name(**KEY) == default_name(**KEY)
    assert re.fullmatch(r"nightly-train-[0-9a-f]{8}", default_name(**KEY))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"dag_id": "hourly"}, id="another dag"),
        pytest.param({"run_id": "scheduled__2026-01-02"}, id="another run"),
        pytest.param({"task_id": "tune"}, id="another task"),
        pytest.param({"map_index": 0}, id="a mapped task"),
        pytest.param({"dag_id": "nightl", "run_id": "yscheduled__2026-01-01"}, id="the same text, cut elsewhere"),
    ],
)
def test_another_task_instance_means_another_job(other):
    """Two task instances never share a job by chance."""
    assert default_name(**{**KEY, **other}) != default_name(**KEY)


def test_a_job_files_name_is_kept_for_people():
    """The part for people is the prefix where there is one; the hash still tells runs apart."""
    assert default_name(**KEY, prefix="digits").startswith("digits-")
    assert default_name(**{**KEY, "map_index": 7}, prefix="digits").startswith("digits-7-")


@given(st.text(), st.text(), st.text(), st.integers(min_value=-1, max_value=10**6), st.text())
def test_a_name_is_always_a_label(dag_id, run_id, task_id, map_index, prefix):
    """Whatever people call their DAGs, the name is a DNS label of at most 52 characters."""
    name = default_name(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index, prefix=prefix)

    assert len(name) <= NAME_LIMIT
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
