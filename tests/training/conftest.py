"""Processes that pretend to be a worker of an agent."""

from __future__ import annotations

import pytest

from rallypoint.training import Snapshots


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Make this process a worker of an agent; returns what puts it into a round, and the folder for its snapshots."""
    folder = tmp_path / "memory"
    folder.mkdir()
    told = {"JOB": "digits", "JOB_MARK": "ab12/0", "ATTEMPT": 1, "TERM": 1, "ROUND": 1, "SNAPSHOT_DIR": folder}
    for name, value in told.items():
        monkeypatch.setenv(f"RALLYPOINT_{name}", str(value))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    return folder


@pytest.fixture
def snapshots(node):
    """Make `Snapshots`, which are closed at the end of the test."""
    made = []

    def make_snapshots(state, **options):
        made.append(Snapshots(state, **options))
        return made[-1]

    yield make_snapshots
    for one in made:
        one.close()
