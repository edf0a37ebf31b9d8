"""What every test of jobs with several roles gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.roles.jobs import SCRIPTS


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that instances write to, and a Python path on which their module is; no torch unless `warm` is asked for."""
    if "warm" not in request.fixturenames:
        request.getfixturevalue("light")
    monkeypatch.setenv("ROLE_JOBS_FOLDER", str(tmp_path))
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(SCRIPTS), path))))
    return tmp_path


@pytest.fixture
def warm() -> None:
    """Instances may import torch, and their next lives are forks of a process that has."""
